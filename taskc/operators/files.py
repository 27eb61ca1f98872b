"""The file of each operator: a model loads those that its operators are in."""

from __future__ import annotations

_NAMES = {
    "attention": "Attention taskc.Attention RotaryEmbedding",
    "control": "If Loop Scan",
    "convolutions": (
        "Conv taskc.Blocks taskc.Folded ConvTranspose ConvInteger taskc.ScaledSums QLinearConv"
    ),
    "elementwise": (
        "Abs Acos Acosh Add Asin Asinh Atan Atanh BitwiseAnd BitwiseNot BitwiseOr "
        "BitwiseXor Ceil Cos Cosh Erf Exp Floor HardSwish Log Mish Mul Neg PRelu "
        "Reciprocal Relu Round Sigmoid Sign Sin Sinh Softplus Softsign Sqrt Sub Tan Tanh "
        "And Equal Greater GreaterOrEqual IsNaN Less LessOrEqual Not Or Xor Celu Clip Elu "
        "HardSigmoid LeakyRelu Selu Swish ThresholdedRelu IsInf Gelu BitShift Div Mod Pow "
        "Max Min Sum Mean Where Cast BitCast CastLike"
    ),
    "fourier": "DFT STFT MelWeightMatrix",
    "linear_models": " ".join(
        f"ai.onnx.ml.{name}"
        for name in (
            "Scaler",
            "Normalizer",
            "Binarizer",
            "Imputer",
            "ArrayFeatureExtractor",
            "OneHotEncoder",
            "LinearRegressor",
            "LinearClassifier",
        )
    ),
    "trees": (
        "ai.onnx.ml.TreeEnsemble ai.onnx.ml.TreeEnsembleRegressor ai.onnx.ml.TreeEnsembleClassifier"
    ),
    "movement": (
        "Transpose Expand Tile Concat Split Slice Gather GatherElements GatherND "
        "ReverseSequence DepthToSpace SpaceToDepth Pad"
    ),
    "norms": (
        "BatchNormalization InstanceNormalization GroupNormalization LayerNormalization "
        "RMSNormalization LpNormalization Hardmax LogSoftmax Softmax LRN"
    ),
    "pooling": "MaxPool AveragePool GlobalAveragePool GlobalMaxPool LpPool GlobalLpPool",
    "products": "MatMul Gemm MatMulInteger QLinearMatMul Det Einsum",
    "quantization": "QuantizeLinear DequantizeLinear DynamicQuantizeLinear taskc.Table",
    "recurrent": "RNN GRU LSTM",
    "reductions": (
        "ReduceSum ReduceMean ReduceProd ReduceMax ReduceMin ReduceL1 ReduceSumSquare "
        "ReduceL2 ReduceLogSum ReduceLogSumExp ArgMin ArgMax CumProd CumSum TopK"
    ),
    "resizing": "Upsample Resize",
    "sampling": "GridSample RoiAlign DeformConv",
    "scattering": "ScatterElements Scatter ScatterND TensorScatter MaxUnpool Col2Im",
    "selections": "NonZero Compress NonMaxSuppression",
    "shapes": (
        "Identity Shape Size Reshape Flatten Squeeze Unsqueeze ConstantOfShape Range "
        "EyeLike OneHot Trilu Dropout"
    ),
}

MICROSOFT = "com.microsoft"  # the domain of ONNX Runtime's own operators

_OF_MICROSOFT = {
    "microsoft": (
        "SkipLayerNormalization SkipSimplifiedLayerNormalization SimplifiedLayerNormalization "
        "EmbedLayerNormalization BiasGelu FastGelu Gelu QuickGelu FusedMatMul TransposeMatMul "
        "FusedConv FusedGemm Range Trilu Pad ExpandDims Inverse GroupNorm SkipGroupNorm BiasAdd "
        "BiasSplitGelu"
    ),
    "microsoft_attention": (
        "Attention QAttention MultiHeadAttention GroupQueryAttention RotaryEmbedding"
    ),
    "microsoft_experts": "MoE QMoE",
    "microsoft_quantized": (
        "QLinearAdd QLinearMul QLinearSigmoid QLinearLeakyRelu QLinearAveragePool "
        "QLinearGlobalAveragePool QLinearConcat QLinearSoftmax QLinearWhere QGemm "
        "DynamicQuantizeMatMul MatMulIntegerToFloat DynamicQuantizeLSTM NhwcMaxPool "
        "QuantizeLinear DequantizeLinear"
    ),
    "microsoft_states": "LinearAttention CausalConvWithState",
    "microsoft_weights": "MatMulNBits MatMulBnb4 GatherBlockQuantized",
}

# Operators that Python runs between programs, on sequences, optional values and strings (taskc.onnx.hosted).
_HOSTED = {
    "hosted": (
        "SequenceEmpty SequenceConstruct SequenceInsert SequenceErase SequenceAt SequenceLength "
        "SplitToSequence ConcatFromSequence SequenceMap Optional OptionalHasElement "
        "OptionalGetElement Unique"
    ),
    "hosted_text": (
        "StringConcat StringNormalizer StringSplit RegexFullMatch TfIdfVectorizer "
        "ai.onnx.ml.LabelEncoder ai.onnx.ml.CategoryMapper ai.onnx.ml.DictVectorizer "
        "ai.onnx.ml.ZipMap"
    ),
}

# By domain and name.
FILES: dict[tuple[str, str], str] = {("", "SimplifiedLayerNormalization"): "microsoft"}
HOSTED: dict[tuple[str, str], str] = {}
for _table, _files in ((FILES, _NAMES), (HOSTED, _HOSTED)):
    for _file, _names in _files.items():
        for _name in _names.split():
            _domain, _, _operator = _name.rpartition(".")
            _table[_domain, _operator] = _file
for _file, _names in _OF_MICROSOFT.items():
    FILES |= {(MICROSOFT, _operator): _file for _operator in _names.split()}
