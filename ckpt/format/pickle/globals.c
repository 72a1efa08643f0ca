/* SPDX-License-Identifier: Apache-2.0 */
/* The globals that a pickle may name. Nothing outside this table is accepted. */
#include <string.h>

#include "pickle.h"
#include "globals.h"

#define META "torch.distributed.checkpoint.metadata"
#define SHARD "torch.distributed._shard.sharded_tensor.metadata" /* until torch 2.2 */
#define NONE CKPT_PK_NO_DTYPE

static const struct ckpt_pk_global globals[] = {
    {META, "Metadata", CKPT_PK_METADATA, NONE},
    {META, "TensorStorageMetadata", CKPT_PK_TENSOR_STORAGE, NONE},
    {META, "BytesStorageMetadata", CKPT_PK_BYTES_STORAGE, NONE},
    {META, "ChunkStorageMetadata", CKPT_PK_CHUNK, NONE},
    {META, "MetadataIndex", CKPT_PK_INDEX, NONE},
    {META, "TensorProperties", CKPT_PK_PROPERTIES, NONE},
    {META, "_MEM_FORMAT_ENCODING", CKPT_PK_OTHER, NONE},
    {META, "MEM_FORMAT_ENCODING", CKPT_PK_OTHER, NONE},
    {META, "StorageMeta", CKPT_PK_STORAGE_META, NONE},
    {SHARD, "TensorProperties", CKPT_PK_PROPERTIES, NONE},
    {SHARD, "MEM_FORMAT_ENCODING", CKPT_PK_OTHER, NONE},
    {"torch.distributed.checkpoint.filesystem", "_StorageInfo", CKPT_PK_STORAGE_INFO, NONE},
    {"torch.serialization", "_get_layout", CKPT_PK_OTHER, NONE},
    {"torch", "Size", CKPT_PK_SIZE, NONE},
    {"torch", "device", CKPT_PK_OTHER, NONE},

    {"torch", "float32", CKPT_PK_DTYPE, FSDP_F32},
    {"torch", "bfloat16", CKPT_PK_DTYPE, FSDP_BF16},
    {"torch", "float16", CKPT_PK_DTYPE, FSDP_F16},
    {"torch", "float64", CKPT_PK_DTYPE, FSDP_F64},
    {"torch", "int64", CKPT_PK_DTYPE, FSDP_I64},
    {"torch", "int32", CKPT_PK_DTYPE, FSDP_I32},
    {"torch", "int16", CKPT_PK_DTYPE, FSDP_I16},
    {"torch", "int8", CKPT_PK_DTYPE, FSDP_I8},
    {"torch", "uint64", CKPT_PK_DTYPE, FSDP_U64},
    {"torch", "uint32", CKPT_PK_DTYPE, FSDP_U32},
    {"torch", "uint16", CKPT_PK_DTYPE, FSDP_U16},
    {"torch", "uint8", CKPT_PK_DTYPE, FSDP_U8},
    {"torch", "bool", CKPT_PK_DTYPE, FSDP_BOOL},
    {"torch", "float8_e4m3fn", CKPT_PK_DTYPE, FSDP_F8_E4M3},
    {"torch", "float8_e5m2", CKPT_PK_DTYPE, FSDP_F8_E5M2},
    {"torch", "float8_e4m3fnuz", CKPT_PK_DTYPE, NONE},
    {"torch", "float8_e5m2fnuz", CKPT_PK_DTYPE, NONE},
    {"torch", "float8_e8m0fnu", CKPT_PK_DTYPE, FSDP_F8_E8M0},
    {"torch", "float4_e2m1fn_x2", CKPT_PK_DTYPE, NONE},
    {"torch", "complex32", CKPT_PK_DTYPE, NONE},
    {"torch", "complex64", CKPT_PK_DTYPE, FSDP_C64},
    {"torch", "complex128", CKPT_PK_DTYPE, NONE},
    {"torch", "qint8", CKPT_PK_DTYPE, NONE},
    {"torch", "quint8", CKPT_PK_DTYPE, NONE},
    {"torch", "qint32", CKPT_PK_DTYPE, NONE},

    {"torch", "FloatStorage", CKPT_PK_STORAGE, FSDP_F32},
    {"torch", "BFloat16Storage", CKPT_PK_STORAGE, FSDP_BF16},
    {"torch", "HalfStorage", CKPT_PK_STORAGE, FSDP_F16},
    {"torch", "DoubleStorage", CKPT_PK_STORAGE, FSDP_F64},
    {"torch", "LongStorage", CKPT_PK_STORAGE, FSDP_I64},
    {"torch", "IntStorage", CKPT_PK_STORAGE, FSDP_I32},
    {"torch", "ShortStorage", CKPT_PK_STORAGE, FSDP_I16},
    {"torch", "CharStorage", CKPT_PK_STORAGE, FSDP_I8},
    {"torch", "ByteStorage", CKPT_PK_STORAGE, FSDP_U8},
    {"torch", "BoolStorage", CKPT_PK_STORAGE, FSDP_BOOL},
    {"torch", "ComplexFloatStorage", CKPT_PK_STORAGE, FSDP_C64},
    {"torch", "ComplexDoubleStorage", CKPT_PK_STORAGE, NONE},
    {"torch", "UntypedStorage", CKPT_PK_UNTYPED, NONE},
    {"torch.storage", "UntypedStorage", CKPT_PK_UNTYPED, NONE},
    {"torch._utils", "_rebuild_tensor_v2", CKPT_PK_TENSOR_V2, NONE},
    {"torch._utils", "_rebuild_tensor_v3", CKPT_PK_TENSOR_V3, NONE},
    {"torch._utils", "_rebuild_parameter", CKPT_PK_PARAMETER, NONE},
    {"torch._tensor", "_rebuild_from_type_v2", CKPT_PK_FROM_TYPE, NONE},
    {"torch", "Tensor", CKPT_PK_OTHER, NONE},
    {"torch._utils", "_rebuild_wrapper_subclass", CKPT_PK_OTHER, NONE},
    {"torch.distributed._shard.sharded_tensor.api", "ShardedTensor", CKPT_PK_OTHER, NONE},
    {"torch.distributed._shard.sharded_tensor.shard", "Shard", CKPT_PK_OTHER, NONE},
    {SHARD, "ShardedTensorMetadata", CKPT_PK_OTHER, NONE},
    {"torch.distributed._shard.metadata", "ShardMetadata", CKPT_PK_OTHER, NONE},
    {"torch.distributed.remote_device", "_remote_device", CKPT_PK_OTHER, NONE},
    {"torch.nn.parameter", "Parameter", CKPT_PK_OTHER, NONE},
    {"torch.nn.parameter", "Buffer", CKPT_PK_OTHER, NONE},

    {"collections", "OrderedDict", CKPT_PK_DICT, NONE},
    {"collections", "defaultdict", CKPT_PK_DICT, NONE},
    {"collections", "Counter", CKPT_PK_DICT, NONE},
    {"collections", "deque", CKPT_PK_LIST, NONE},
    {"builtins", "set", CKPT_PK_LIST, NONE},
    {"builtins", "frozenset", CKPT_PK_LIST, NONE},
    {"builtins", "list", CKPT_PK_LIST, NONE},
    {"builtins", "dict", CKPT_PK_DICT, NONE},
    {"builtins", "int", CKPT_PK_OTHER, NONE},
    {"builtins", "float", CKPT_PK_OTHER, NONE},
    {"__builtin__", "set", CKPT_PK_LIST, NONE},
    {"__builtin__", "frozenset", CKPT_PK_LIST, NONE},
    {"__builtin__", "list", CKPT_PK_LIST, NONE},
    {"__builtin__", "dict", CKPT_PK_DICT, NONE},
    {"__builtin__", "int", CKPT_PK_OTHER, NONE},
    {"__builtin__", "float", CKPT_PK_OTHER, NONE},
    {"_codecs", "encode", CKPT_PK_ENCODE, NONE},
    {"argparse", "Namespace", CKPT_PK_OTHER, NONE},
    {"_io", "BytesIO", CKPT_PK_BYTESIO, NONE},
    {"io", "BytesIO", CKPT_PK_BYTESIO, NONE},

    /* The plan that Megatron-Core's .metadata keeps. */
    {"torch.distributed.checkpoint.planner", "SavePlan", CKPT_PK_OTHER, NONE},
    {"torch.distributed.checkpoint.planner", "WriteItem", CKPT_PK_OTHER, NONE},
    {"torch.distributed.checkpoint.planner", "WriteItemType", CKPT_PK_OTHER, NONE},
    {"torch.distributed.checkpoint.planner", "TensorWriteData", CKPT_PK_OTHER, NONE},

    /* DeepSpeed's settings, next to its tensors. */
    {"deepspeed.runtime.fp16.loss_scaler", "LossScaler", CKPT_PK_OTHER, NONE},
    {"deepspeed.runtime.fp16.loss_scaler", "DynamicLossScaler", CKPT_PK_OTHER, NONE},
    {"deepspeed.runtime.zero.config", "ZeroStageEnum", CKPT_PK_OTHER, NONE},
    {"deepspeed.utils.tensor_fragment", "fragment_address", CKPT_PK_OTHER, NONE},

    {"pathlib", "PosixPath", CKPT_PK_PATH, NONE},
    {"pathlib", "PurePosixPath", CKPT_PK_PATH, NONE},
    {"pathlib", "WindowsPath", CKPT_PK_PATH, NONE},
    {"pathlib", "PureWindowsPath", CKPT_PK_PATH, NONE},
    {"pathlib._local", "PosixPath", CKPT_PK_PATH, NONE}, /* Python 3.13 */
    {"pathlib._local", "PurePosixPath", CKPT_PK_PATH, NONE},
    {"pathlib._local", "WindowsPath", CKPT_PK_PATH, NONE},
    {"pathlib._local", "PureWindowsPath", CKPT_PK_PATH, NONE},
};

static bool equal(const char *text, const char *data, size_t nbytes)
{
    return strlen(text) == nbytes && !memcmp(text, data, nbytes);
}

const struct ckpt_pk_global *ckpt_pk_global_find(const char *module, size_t module_nbytes,
                                                 const char *name, size_t name_nbytes)
{
    for (size_t i = 0; i < sizeof globals / sizeof globals[0]; i++)
        if (equal(globals[i].module, module, module_nbytes) &&
            equal(globals[i].name, name, name_nbytes))
            return &globals[i];
    return NULL;
}
