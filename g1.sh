. /tmp/hu/work/lib.sh
mkdir -p $W/disk
variants=("fsdp.device=cpu fsdp.offload=optimizer fsdp.offload_dir=$W/disk checkpoint.async=true" "fsdp.device=cuda fsdp.offload=params fsdp.offload_dir=$W/disk fsdp.offload_slots=1" "fsdp.device=cuda fsdp.offload=optimizer fsdp.offload_slots=64 fsdp.update_at=forward")
t sf2 "-n 2" fsdp.param_dtype=bfloat16 optim.name=schedulefree optim.schedule=constant optim.min_lr=0
t a8 "-n 3" fsdp.param_dtype=bfloat16 optim.name=adamw8bit fsdp.grad_dtype=bfloat16
t lion "-n 2 --nodes 2" fsdp.sharding_strategy=HYBRID_SHARD optim.name=lion optim.lr=3e-4
t nosh "-n 2" fsdp.sharding_strategy=NO_SHARD fsdp.param_dtype=bfloat16 optim.ema_decay=0.9 train.micro_batch_size=2
t split "-n 2" fsdp.param_dtype=bfloat16 optim.master=split optim.moment_dtype=bfloat16 fsdp.reduce_last=true train.micro_batch_size=2 fsdp.wrap_classes=[LlamaDecoderLayer,LlamaMLP]
