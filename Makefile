# SPDX-License-Identifier: Apache-2.0
# `make list` shows the targets, config.mk the settings.

include config.mk

# Where this build goes. Sanitizer builds have a folder of their own (build/asan, ...); objects lie
# in one folder per compiler and flag set, so that builds never mix.
B   := build
BIN := $(B)/bin
LIB := $(B)/lib

CPPFLAGS += -D_GNU_SOURCE -DHAVE_PMIX=$(HAVE_PMIX) -DHAVE_HWLOC=$(HAVE_HWLOC) -DHAVE_ZSTD=$(HAVE_ZSTD) \
	-DHAVE_DNNL=$(HAVE_DNNL) -DHAVE_CURL=$(HAVE_CURL) -DHAVE_CAIRO=$(HAVE_CAIRO)
# Nobody reads errno after a square root, or the flags of floating-point exceptions; loops that
# hold a root or a comparison vectorise without them. No result changes.
CFLAGS   += $(CSTD) $(OPT) -fno-math-errno -fno-trapping-math -g -fPIC -pthread $(CWARN) $(SANITIZE)
LDFLAGS  += -pthread -Wl,--as-needed $(SANITIZE)
ifeq ($(FUZZING),1)
CPPFLAGS += -DFUZZING
CFLAGS   += -fsanitize=fuzzer-no-link
LDFLAGS  += -fsanitize=fuzzer
endif

# What each folder may include is what it finds: tests/house/edges.sh checks the rest.
INC_public   := -Ilauncher/include -Ickpt/include -Ilibfsdp/include
INC_libfsdp  := -Ilibfsdp -Ilibfsdp/include
INC_launcher := -Ilauncher -Ilauncher/include -Ilibfsdp/include
INC_ckpt     := -Ickpt -Ickpt/include -Ilibfsdp/include
INC_models   := -Imodels $(INC_public)
INC_tests    := -Itests/lib $(INC_models) -Ilibfsdp -Ilauncher -Ickpt

# A call for each package: of one that is missing, pkg-config would give nothing for the others either.
# Packages may have no rpath (RPATH=0); where libraries lie in folders of their own, it is needed.
pkg_cflags = $(foreach p,$(1),$(shell pkg-config --cflags $(p) 2>/dev/null))
NO_RPATH   := | sed -E 's/-Wl,-rpath[ ,=]*(-Wl,)?[^ ]*//g'
pkg_libs   = $(foreach p,$(1),$(shell pkg-config --libs $(p) 2>/dev/null $(if $(filter 0,$(RPATH)),$(NO_RPATH))))
PKG_CFLAGS := $(call pkg_cflags,$(sort $(REQUIRED) $(PKGS_boot) $(PKGS_ckpt) $(PKGS_headers))) $(CBLAS_CFLAGS)
LIBS_ckpt  := $(call pkg_libs,$(sort $(PKGS_fsdp) $(PKGS_ckpt))) -lm -lrt
LIBS_all   := $(call pkg_libs,$(sort $(REQUIRED) $(PKGS_boot) $(PKGS_ckpt))) $(CBLAS_LIBS) $(DNNL_LIBS) -lm -ldl -lrt

# libfsdp-cuda.so: C files see CUDA's headers, .cu files are nvcc's. What the assembler says of
# kernels is kept next to the library, for tests/device/registers.sh.
CUDA_CPPFLAGS := -DHAVE_NCCL=$(HAVE_NCCL) -DHAVE_CUDNN=$(HAVE_CUDNN) -isystem $(CUDA_HOME)/include
NVCCFLAGS += -std=c++17 -O3 -lineinfo $(foreach a,$(CUDA_SM),-gencode arch=compute_$(a)$(comma)code=sm_$(a)) \
	$(foreach a,$(CUDA_PTX),-gencode arch=compute_$(a)$(comma)code=compute_$(a)) -D_GNU_SOURCE \
	-Xcompiler -fPIC$(comma)-Wall$(comma)-Wextra$(comma)-g$(comma)-fvisibility=hidden \
	$(if $(filter 1,$(WERROR)),-Werror all-warnings)
CUDA_LIBS := -L$(CUDA_LIB) $(if $(filter 0,$(RPATH)),,-Wl$(comma)-rpath$(comma)$(CUDA_LIB)) -lcudart_static -lcublasLt \
	$(if $(filter 1,$(HAVE_NCCL)),-lnccl) -lstdc++ -lm -ldl -lrt

FLAGHASH := $(shell printf '%s' '$(CC) $(CPPFLAGS) $(CFLAGS) $(PKG_CFLAGS) $(if $(filter 1,$(HAVE_CUDA)),\
	$(CUDA_CPPFLAGS) $(NVCC) $(NVCCFLAGS))' | cksum | cut -d' ' -f1)
OBJ := build/obj/$(FLAGHASH)

TARGET_CPU := $(firstword $(subst -, ,$(shell $(CC) -dumpmachine 2>/dev/null)))
GCC_MAJOR   := $(shell $(CC) -dumpversion 2>/dev/null | cut -d. -f1)

# ---- what there is to build: found by folder ----------------------------------------------------

CUDA_ALL   := $(sort $(wildcard libfsdp/comm/nccl/*.c $(addprefix libfsdp/device/cuda/,*.c *.cu) \
	$(addprefix models/nn/cuda/,*.c *.cu)))
SRC_cuda   := $(if $(filter 1,$(HAVE_CUDA)),$(CUDA_ALL))
ifneq ($(HAVE_NCCL),1)
SRC_cuda := $(filter-out libfsdp/comm/nccl/%,$(SRC_cuda))
endif
ifneq ($(HAVE_CUDNN),1)
SRC_cuda := $(filter-out models/nn/cuda/cudnn_%,$(SRC_cuda))
endif
MPI_ALL    := $(sort $(wildcard libfsdp/comm/mpi/*.c))
SRC_fsdp   := $(filter-out $(CUDA_ALL) $(MPI_ALL),$(sort $(shell find libfsdp -name '*.c')))
SRC_boot   := $(sort $(shell find launcher -name '*.c'))
SRC_ckpt   := $(sort $(filter-out ckpt/tools/%,$(shell find ckpt -name '*.c')))
SRC_models := $(sort $(filter-out models/tools/% models/nn/cuda/%,$(shell find models -name '*.c')))
SRC_tests  := $(sort $(wildcard tests/lib/*.c))
ifneq ($(HAVE_PMIX),1)
SRC_boot := $(filter-out launcher/boot/pmix%,$(SRC_boot))
endif
ifneq ($(HAVE_HWLOC),1)
SRC_boot := $(filter-out launcher/bind/hwloc.c,$(SRC_boot))
endif
SRC_launch := $(filter launcher/rank/% launcher/boot/% launcher/channel/% launcher/bind/gpu.c launcher/bind/nvml.c,$(SRC_boot))
ifneq ($(HAVE_CURL),1)
SRC_ckpt := $(filter-out ckpt/store/s3/%,$(SRC_ckpt))
endif

ar_of    = $(OBJ)/lib$(1).a
prog_of  = $(BIN)/$(subst _,-,$(notdir $(basename $(1))))
# What is installed is linked without the fault injection of the tests.
plain_of = $(B)/install/$(notdir $(1))
FAULT_O  := $(OBJ)/tests/faults/environment.o
LIBS     := $(foreach l,models boot ckpt fsdp,$(call ar_of,$(l)))
CKPT_SRC := $(sort $(wildcard ckpt/tools/ckpt_*.c))
SRC_tool := $(sort $(filter-out $(CKPT_SRC),$(wildcard ckpt/tools/*.c)))
TOOL_SRC := $(sort $(wildcard models/tools/fsdp_*.c))
SRC_options := $(sort $(filter-out $(TOOL_SRC),$(wildcard models/tools/*.c)))
TOOLS    := $(foreach s,$(CKPT_SRC),$(call prog_of,$(s)))
PROGRAMS := $(TOOLS) $(foreach s,$(TOOL_SRC),$(call prog_of,$(s)))
# The folders of tests whose programs are built.
TEST_FOLDERS ?= *
$(foreach f,$(filter-out *,$(TEST_FOLDERS)),$(if $(wildcard tests/$(f)),,$(error TEST_FOLDERS: there is no folder tests/$(f))))
tests_of  = $(patsubst tests/%.c,$(BIN)/tests/%,$(sort $(foreach f,$(TEST_FOLDERS),$(wildcard tests/$(f)/$(1)_*.c))))
BENCHES  := $(call tests_of,bench)
TESTS    := $(call tests_of,test)
NCCL_SIM := $(BIN)/tests/simt/libfsdp-nccl-sim.so
HEADERS  := $(wildcard libfsdp/include/fsdp/*.h libfsdp/include/fsdp/sys/*.h launcher/include/fsdp/*.h ckpt/include/ckpt/*.h ckpt/include/ckpt/sys/*.h)
C_FILES   = $(sort $(shell find libfsdp launcher ckpt models tests -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh'))

version  = $(shell sed -n 's/^.define FSDP_VERSION_$(1) *"*\([0-9.]*\)"*/\1/p' libfsdp/include/fsdp/base.h)
VERSION := $(call version,STRING)
MAJOR   := $(call version,MAJOR)
SHARED_LIBS := libfsdp libfsdp-launch libckpt
CUDA_SHARED := $(if $(SRC_cuda),$(LIB)/libfsdp-cuda.so)
MPI_SHARED := $(if $(filter 1,$(HAVE_MPI)),$(LIB)/libfsdp-mpi.so)
shared_of = $(LIB)/$(1).so.$(VERSION)
LIBRARIES := $(foreach l,$(SHARED_LIBS),$(LIB)/$(l).a $(call shared_of,$(l))) $(CUDA_SHARED) $(MPI_SHARED)

# V=1 shows commands. Else a line for each folder is shown, and commands go to $(B)/log.
ifeq ($(V),1)
say =
step =
else
say = @printf '  %-4s %s\n' $(1) $(2);
# $(call step,kind,file,folder of objects,the sources of its folder)
step = @scripts/build_step.sh '$(B)' '$(1)' '$(2)' '$(3)' $(4) -- $(empty)
MAKEFLAGS += --no-print-directory
endif
ifndef BUILD_SESSION
export BUILD_SESSION := $(shell echo $$PPID-$$(date +%s))
endif
# What every program is linked with, so that all files of a folder are compiled.
siblings = $(filter $(wildcard $(<D)/*.c),$(SRC_fsdp) $(SRC_boot) $(SRC_ckpt) $(SRC_models))
Q := $(if $(filter 1,$(V)),,@)
# Build with every core, unless the user chose.
JOBS = $(if $(findstring -j,$(MAKEFLAGS)),,-j$(shell nproc))

# What is installed is what this build uses; another CBLAS is the user's affair.
WITHS := CURL PMIX HWLOC ZSTD DNNL MPI CAIRO
DEPS = CC='$(CC)' $(foreach w,$(WITHS),WITH_$(w)='$(WITH_$(w))') \
	CBLAS_LIBS='$(if $(filter file,$(origin CBLAS_LIBS)),,$(CBLAS_LIBS))' \
	scripts/deps.sh

.DEFAULT_GOAL := all
.DELETE_ON_ERROR:
.PHONY: FORCE bench-accuracy bench-ckpt bench-plan bench-estimators plan-charts check-memory check-gpu bench-gpu all tools libs tests list deps deps-list table check check-run check-damage check-long check-fuzz-train check-interop check-interop-run check-ptx check-families check-gguf check-gguf-run check-deepspeed check-deepspeed-run check-tutorials check-tutorials-run check-slurm \
	check-slurm-run slurm-shell check-nfs check-nfs-run check-watch check-watch-run check-aarch64 site check-site demo demo-text bench \
	install uninstall format lint clean

## all              build programs and libraries (the default)
all: $(PROGRAMS) $(LIBRARIES)
	@:

## tools            build the checkpoint tools alone (needs no PMIx, BLAS or YAML)
tools: $(TOOLS)

## libs             build libfsdp, libfsdp-launch and libckpt (.a, .so), libfsdp-cuda.so where nvcc is, and libfsdp-mpi.so
##                  where MPI is
libs: $(LIBRARIES)

## tests            build the test programs (TEST_FOLDERS='base core': of these folders alone)
tests: $(TESTS) $(BENCHES) $(NCCL_SIM)
	@:

## deps             install what building needs (as root), or say what is missing
deps:
	@$(DEPS) build

## deps-list        what a site must have: packages by distribution, and what each is for
deps-list:
	@$(DEPS) --list

## check            install what is missing, build, run all tests that need no GPU and no Python;
##                  T='tests/comm/*' chooses tests
check:
	@$(DEPS) check
	@$(MAKE) $(JOBS) check-run

check-run: all tests
	@TOP='$(CURDIR)' BIN='$(abspath $(BIN))' OBJ='$(abspath $(OBJ))' TEST_CC='$(CC)' NVCC='$(NVCC)' tests/run $(RUNFLAGS) $(T)

## check-damage     1,500 random damages to DCP checkpoints and 1,000 to native ones: merge must refuse
##                  them or write the right tensors (DAMAGE_SEED=N, default 1); check has 60 of each
check-damage: all
	@DAMAGE_DCP=1500 DAMAGE_NATIVE=1000 $(MAKE) check-run RUNFLAGS='$(RUNFLAGS) -v' T=tests/ckpt/test_random_damage.c

## check-long       200 rounds of SIGKILL to save, merge and reshard (KILL_SEED=N repeats one run); 200 of
##                  a store's and a network's faults (FAULT_SEED=N); NFS; check-fuzz-train; under
##                  Slurm, 100 jobs killed and resumed (CYCLE_SEED=N), and every way to start ranks.
##                  Each run has other seeds, while those of check are always the same.
check-long: export KILL_SEED  ?= $(shell date +%s)
check-long: export FAULT_SEED ?= $(KILL_SEED)
check-long: export DAMAGE_SEED ?= $(KILL_SEED)
check-long: export CYCLE_SEED ?= $(KILL_SEED)
check-long: export FUZZ_SEED  ?= $(KILL_SEED)
check-long: all
	@$(MAKE) check-damage
	@KILLS=200 $(MAKE) check-run T=tests/ckpt/kill.sh
	@$(MAKE) check-fuzz-train
	@FAULTS=200 $(MAKE) check-s3 T=tests/s3/faults.sh
	@$(MAKE) check-nfs
	@CYCLES=100 MATRIX=all $(MAKE) check-slurm T='tests/slurm/matrix.sh tests/slurm/cycles.sh'

## check-fuzz-train 200 random models and configurations on several ranks against one rank, half of them
##                  against double precision, too (FUZZ_SEED=N draws others, FUZZ_CASE=N repeats one
##                  alone, FUZZ_RAN=N runs so many); check runs 16
check-fuzz-train: export FUZZ_RAN ?= 200
check-fuzz-train:
	@$(MAKE) check-run RUNFLAGS='-v $(RUNFLAGS)' T=tests/models/test_fuzz.c

## site             build the documentation as a site of plain files: build/site/index.html
site:
	@$(DEPS) site
	@scripts/site.sh build/site

## check-site       build it, follow every link, and look at it in Chromium
check-site: site
	@TOP='$(CURDIR)' BIN='$(abspath $(BIN))' tests/run $(RUNFLAGS) tests/site

## check-interop    compare with PyTorch: files it wrote, files it must read (fetches it from PyPI
##                  into build/venv, or set TORCH_PYTHON)
check-interop:
	@$(DEPS) interop
	@$(MAKE) $(JOBS) check-interop-run

check-interop-run: all tests
	@TOP='$(CURDIR)' BIN='$(abspath $(BIN))' scripts/with_python.sh torch \
		tests/run $(RUNFLAGS) $(or $(T),tests/interop)

## check-families   every model family, and adapters on all of them, compared with transformers and PEFT
check-families:
	@ADAPTERS=all MIXTURES=all DCP_FAMILIES=all $(MAKE) check-interop \
		T='tests/interop/families.sh tests/interop/adapters.sh tests/interop/adapters_experts.sh'

## check-gguf       GGUF files loaded by llama.cpp, which is built once from PyPI's source package of
##                  llama-cpp-python into build/llama.cpp (LLAMA_CPP names a folder that has it)
check-gguf:
	@$(DEPS) interop
	@$(DEPS) gguf
	@$(MAKE) $(JOBS) check-gguf-run

check-gguf-run: all tests
	@TOP='$(CURDIR)' BIN='$(abspath $(BIN))' scripts/with_python.sh torch scripts/with_llama.sh \
		tests/run -j 1 $(RUNFLAGS) $(or $(T),tests/gguf)

## check-deepspeed  checkpoints that DeepSpeed writes on the CPU, next to its own conversions (fetches it from PyPI
##                  into build/venv-deepspeed)
check-deepspeed:
	@$(DEPS) interop
	@$(MAKE) $(JOBS) check-deepspeed-run

check-deepspeed-run: all
	@TOP='$(CURDIR)' BIN='$(abspath $(BIN))' scripts/with_python.sh torch scripts/with_deepspeed.sh \
		tests/run -j 1 $(RUNFLAGS) $(or $(T),tests/deepspeed)

## table            write docs/results/strategies.md: what each combination of settings differs by from double precision
table: all tests
	@TOP='$(CURDIR)' COVER_TABLE='$(CURDIR)/docs/results/strategies.md' $(BIN)/tests/models/test_cover

## check-tutorials  every command of docs/tutorials that needs neither Slurm nor Python (check-slurm and
##                  check-interop run the others)
check-tutorials:
	@$(DEPS) demo
	@$(MAKE) $(JOBS) check-tutorials-run

check-tutorials-run: all
	@TOP='$(CURDIR)' BIN='$(abspath $(BIN))' tests/run $(RUNFLAGS) $(or $(T),tests/tutorials)

## check-ptx        the operators' kernels as nvcc's PTX for the GPUs whose PTX the library does not contain
check-ptx: tests
	@$(MAKE) $(JOBS) $(BIN)/tests/simt/ptx_nn.list
	@PTX_NN_LIST='$(abspath $(BIN))/tests/simt/ptx_nn.list' $(MAKE) check-run RUNFLAGS='$(RUNFLAGS)' T=tests/simt/ptx_nn.sh

## check-slurm      the launcher under a real Slurm of several nodes on this machine
check-slurm:
	@$(DEPS) slurm
	@$(MAKE) $(JOBS) check-slurm-run

check-slurm-run: all tests
	@TOP='$(CURDIR)' BIN='$(abspath $(BIN))' TEST_CC='$(CC)' tests/run -j 1 $(RUNFLAGS) $(or $(T),tests/slurm)

## slurm-shell      a shell in such a Slurm (NODES=4)
slurm-shell: all
	@$(DEPS) slurm
	@PATH='$(abspath $(BIN))':$$PATH tests/slurm/lib/cluster shell build/slurm

## check-s3         checkpoints on a real S3 server (Ceph's gateway), started for this on this machine
check-s3:
	@$(DEPS) s3
	@$(MAKE) $(JOBS) check-s3-run

check-s3-run: all tests
	@TOP='$(CURDIR)' BIN='$(abspath $(BIN))' scripts/with_python.sh aws tests/s3/lib/server run \
		tests/run $(RUNFLAGS) $(or $(T),tests/s3)

## check-aarch64    build for aarch64 here, and run tests of base, core, ckpt, nn and comm under qemu
##                  (T=... others; AARCH64_LONG=1 the slowest, too)
check-aarch64:
	@$(DEPS) aarch64
	@scripts/aarch64.sh $(T)

## check-nfs        the commit of checkpoints on a real NFS server, v4 and v3, in an emulated machine
check-nfs:
	@$(DEPS) nfs
	@$(MAKE) $(JOBS) check-nfs-run

check-nfs-run: all
	@TOP='$(CURDIR)' BIN='$(abspath $(BIN))' tests/run -j 1 -v $(RUNFLAGS) $(or $(T),tests/nfs)

## check-watch      a run watched by Prometheus, Chromium, TensorBoard's reader and W&B's client (the latter two from PyPI)
check-watch:
	@$(DEPS) watch
	@$(MAKE) $(JOBS) check-watch-run

check-watch-run: all
	@TOP='$(CURDIR)' BIN='$(abspath $(BIN))' scripts/with_python.sh watch \
		tests/run $(RUNFLAGS) $(or $(T),tests/watch)

## s3-shell         a shell next to such a server, its address and keys in the environment
s3-shell: all
	@$(DEPS) s3
	@PATH='$(abspath $(BIN))':$$PATH tests/s3/lib/server run

## demo             install what is missing, build, train a small Llama and show everything
demo:
	@$(DEPS) demo
	@$(MAKE) $(JOBS) all
	@BIN='$(abspath $(BIN))' scripts/demo.sh

## demo-text        the same from text to text: learns a vocabulary, tokenizes, trains, generates
demo-text:
	@$(DEPS) demo
	@$(MAKE) $(JOBS) all
	@BIN='$(abspath $(BIN))' scripts/demo_text.sh

## bench            benchmarks against other programs in the same run (scripts/bench.sh runs one)
bench: all $(BENCHES)
	@$(DEPS) bench
	@BIN='$(abspath $(BIN))' scripts/bench.sh merge
	@BIN='$(abspath $(BIN))' scripts/bench.sh comm
	@BIN='$(abspath $(BIN))' scripts/bench.sh save
	@BIN='$(abspath $(BIN))' scripts/bench.sh tokens
	@BIN='$(abspath $(BIN))' scripts/bench.sh families
	@BIN='$(abspath $(BIN))' scripts/bench.sh torch

## check-gpu        what must hold on a GPU (scripts/check_gpu.sh runs a part of it); needs no network,
##                  and with scripts/gpu_pack.sh's file no packages
check-gpu:
	@scripts/check_gpu.sh $(PARTS)

## bench-gpu        training next to PyTorch on a GPU, and each kernel (scripts/bench_gpu.sh)
bench-gpu:
	@scripts/bench_gpu.sh $(PARTS)

## bench-ckpt       checkpoint tools and codec against copy loops and torch's tools (TORCH_PYTHON);
##                  ROWS='merge info' chooses rows
bench-ckpt: all $(BENCHES)
	@BIN='$(abspath $(BIN))' scripts/bench_ckpt.sh $(ROWS)

## plan-charts      the charts and tables of docs/results/scaling.md, from fsdp-plan
plan-charts: $(BIN)/fsdp-plan
	@BIN='$(abspath $(BIN))' scripts/plan_charts.py

## bench-accuracy   the loss in fp32, in bf16 and with products in 8 bits, a Llama of 34M, 500 steps, three seeds:
##                  five hours; resumes; scripts/bench_accuracy.sh has more kinds
bench-accuracy: all
	@$(DEPS) demo
	@BIN='$(abspath $(BIN))' scripts/bench_accuracy.sh

## bench-plan       fsdp-plan's clock against real runs on this machine's cores, after sweeps; writes
##                  docs/results/plan-cpu.md (10 minutes, on a machine that does nothing else)
bench-plan: all $(BENCHES)
	@BIN='$(abspath $(BIN))' scripts/bench_plan.sh

## bench-estimators memory as accelerate and DeepSpeed estimate it, as fsdp-plan plans it, and as real runs take it;
##                  writes docs/results/estimators.md (fetches both from PyPI)
bench-estimators: all
	@$(DEPS) interop
	@BIN='$(abspath $(BIN))' scripts/with_python.sh torch scripts/bench_estimators.sh >build/estimators.md
	@mv build/estimators.md docs/results/estimators.md

## check-memory     peak memory of merge and reshard on checkpoints of 8 GB from 2, 8 and 64 ranks, and of
##                  fsdp-tokenize on 100 MB and 1 GB
check-memory: all
	@$(DEPS) bench
	@BIN='$(abspath $(BIN))' scripts/check_memory.sh

## bench-s3         transfers to a real S3 server against parallel curl and the AWS CLI
bench-s3: all $(BENCHES)
	@$(DEPS) s3
	@$(DEPS) bench
	@BIN='$(abspath $(BIN))' scripts/with_python.sh aws tests/s3/lib/server run scripts/bench_s3.sh

## asan-TARGET      any target with the address sanitizer, such as asan-check; also ubsan-TARGET
##                  (undefined behaviour), sanitize-TARGET (both) and tsan-TARGET (threads)
sanitized = $(MAKE) $* B=build/$(1) OPT='-O1 -fno-omit-frame-pointer' SANITIZE='$(2)'
asan-%:
	+@ASAN_OPTIONS=$(ASAN_OPTIONS):detect_leaks=1 TEST_SANITIZER=asan \
		$(call sanitized,asan,-fsanitize=address)
ubsan-%:
	+@UBSAN_OPTIONS=$(UBSAN_OPTIONS):print_stacktrace=1 TEST_SANITIZER=ubsan \
		$(call sanitized,ubsan,-fsanitize=undefined -fno-sanitize-recover=all)
sanitize-%:
	+@ASAN_OPTIONS=$(ASAN_OPTIONS):detect_leaks=1 UBSAN_OPTIONS=$(UBSAN_OPTIONS):print_stacktrace=1 TEST_SANITIZER=asan \
		$(call sanitized,sanitize,-fsanitize=address$(comma)undefined -fno-sanitize-recover=all)
# Without address randomisation, which some kernels make too wide for the thread sanitizer.
tsan-%:
	+@TSAN_OPTIONS=$(TSAN_OPTIONS):halt_on_error=1 TEST_SANITIZER=tsan \
		setarch -R $(call sanitized,tsan,-fsanitize=thread)

## fuzz-NAME        look for inputs that break a reader (tests/fuzz/test_NAME.c), FUZZ_SECONDS=600;
##                  make fuzz-safetensors, manifest, index, megatron, config, zip, pickle, dcp, torch,
##                  deepspeed, mp_rank, fsdp1, packed, frames, jsonl, tokens, xml, ini, creds, chat,
##                  tokenizer, tokenizer_text, regex
FUZZ_SECONDS ?= 600
fuzz-%:
	@$(DEPS) fuzz
	+@$(MAKE) $(JOBS) B=build/fuzz CC=clang OPT='-O1 -fno-omit-frame-pointer' FUZZING=1 \
		SANITIZE='-fsanitize=address,undefined -fno-sanitize-recover=all' \
		build/fuzz/bin/tests/fuzz/test_$*
	@mkdir -p build/fuzz/corpus/$*
	build/fuzz/bin/tests/fuzz/test_$* -max_total_time=$(FUZZ_SECONDS) -rss_limit_mb=4096 -timeout=20 \
		-print_final_stats=1 -artifact_prefix=build/fuzz/$*- build/fuzz/corpus/$* tests/fuzz/corpus/$*

# ---- how ----------------------------------------------------------------------------------------

# Nothing stops above when a required package is missing, because `make check` and `make demo` are about
# to install it: the first compilation says what is missing. The checkpoint tools alone need less.
NEEDS := $(if $(filter-out tools wheel-files $(TOOLS),$(or $(MAKECMDGOALS),all)),build,tools)
READY := $(OBJ)/.ready-$(NEEDS)
$(READY):
	@$(DEPS) --missing $(NEEDS)
	@mkdir -p $(@D) && touch $@

$(OBJ)/%.o: %.c | $(READY)
	@mkdir -p $(@D)
	$(call step,CC,$<,$(OBJ),$(siblings))$(CC) $(INC_$(firstword $(subst /, ,$<))) $(CPPFLAGS) $(PKG_CFLAGS) $(CFLAGS) \
		-MMD -MP -c -o $@ $<

# What --version shows. A file of its own knows when it has changed.
has = $(if $(filter 1,$(HAVE_$(1))),+,-)$(2)
BUILD_OPTIONS := $(call has,PMIX,pmix) $(call has,HWLOC,hwloc) $(call has,ZSTD,zstd) $(call has,CURL,curl) \
	$(call has,DNNL,dnnl) $(call has,MPI,mpi) $(call has,CUDA,cuda) $(call has,CAIRO,cairo) $(TARGET) $(strip $(OPT))
$(OBJ)/.options: FORCE | $(READY)
	@echo '$(BUILD_OPTIONS)' | cmp -s - $@ || echo '$(BUILD_OPTIONS)' >$@
$(OBJ)/libfsdp/base/version.o: $(OBJ)/.options
# Plug-ins lie in a folder of the multi-arch kind, too.
$(OBJ)/libfsdp/base/library.o: CPPFLAGS += -DBUILD_TARGET='"$(TARGET)"'
$(OBJ)/libfsdp/base/version.o: CPPFLAGS += -DBUILD_OPTIONS='"$(BUILD_OPTIONS)"'

# A value that is clamped would otherwise get a path of its own through what follows, in which GCC computes all of it
# again, divisions too, for every vector.
NO_PATHS := $(shell echo | $(CC) -Werror -fno-thread-jumps -x c -c -o /dev/null - 2>/dev/null && echo -fno-thread-jumps)
$(OBJ)/models/nn/cpu/%.o: CFLAGS += $(NO_PATHS)
# The scales of NF4 are a product and a sum, each rounded (libfsdp/device/common/nf4.h).
# So are the terms of an average.
$(OBJ)/libfsdp/device/cpu/cpu_nf4.o $(OBJ)/ckpt/source/packed.o $(OBJ)/ckpt/average/average_read.o: CFLAGS += -ffp-contract=off

OBJ_cuda := $(patsubst %.c,$(OBJ)/%.o,$(patsubst %.cu,$(OBJ)/%.cu.o,$(SRC_cuda)))
$(filter-out %.cu.o,$(OBJ_cuda)): CPPFLAGS += $(CUDA_CPPFLAGS)

# Which products and sums become one instruction is the compiler's choice in each place: without, a
# kernel's ways (whole packs, their rests, any type of moments) give the same bits.
$(OBJ)/libfsdp/device/cuda/%.cu.o: NVCCFLAGS += -fmad=false
$(OBJ)/%.cu.o: %.cu | $(READY)
	@mkdir -p $(@D)
	$(call step,NVCC,$<,$(OBJ))$(NVCC_LAUNCHER) $(NVCC) $(INC_$(firstword $(subst /, ,$<))) $(NVCCFLAGS) \
		-Xptxas -v -MMD -MP -MF $(@:.o=.d) -c -o $@ $< 2>$(@:.o=.ptxas) || { cat $(@:.o=.ptxas) >&2; exit 1; }
	@grep -v -e '^ptxas info' -e 'bytes stack frame' $(@:.o=.ptxas) >&2 || true

# Programs are linked again when they were last linked from objects of other flags.
FLAGS := $(BIN)/.flags
$(FLAGS): FORCE
	@mkdir -p $(@D)
	@echo '$(FLAGHASH) $(LDFLAGS) $(LIBS_all)' | cmp -s - $@ || \
		echo '$(FLAGHASH) $(LDFLAGS) $(LIBS_all)' >$@

# Made anew each time and listed in the members' order, so that a removed source leaves it.
archive = rm -f $@ && $(AR) rcs $@ $^

define library
$(call ar_of,$(1)): $(patsubst %.c,$(OBJ)/%.o,$(SRC_$(1)))
	$$(call say,AR,$$(notdir $$@))$$(archive)
endef
$(foreach l,fsdp boot ckpt tool options models tests,$(eval $(call library,$(l))))

# $(call program,source,libraries,what they need)
define program
$(call prog_of,$(1)): $(FAULT_O)
$(call prog_of,$(1)) $(call plain_of,$(call prog_of,$(1))): $(OBJ)/$(basename $(1)).o $(2) $(FLAGS)
	@mkdir -p $$(@D)
	$$(call step,LD,$$@)$(CC) $(LDFLAGS) -o $$@ $$(filter %.o,$$^) $$(filter %.a,$$^) $(3)
endef
$(foreach s,$(CKPT_SRC),$(eval $(call program,$(s),$(call ar_of,tool) $(call ar_of,ckpt) $(call ar_of,fsdp),$(LIBS_ckpt))))
$(foreach s,$(TOOL_SRC),$(eval $(call program,$(s),$(call ar_of,options) $(LIBS),$(LIBS_all)\
	$(if $(filter %/fsdp_plot.c %/fsdp_plan.c,$(s)),$(call pkg_libs,$(PKGS_plot))))))
$(OBJ)/models/chart/png.o: CPPFLAGS += $(call pkg_cflags,$(PKGS_plot))

$(filter-out $(BIN)/tests/simt/%,$(TESTS)) $(BENCHES): $(BIN)/tests/%: $(OBJ)/tests/%.o $(call ar_of,tests) $(LIBS) $(FLAGS)
	@mkdir -p $(@D)
	$(call step,LD,$@)$(CC) $(LDFLAGS) -o $@ $(filter %.o %.a,$^) $(LIBS_all)

# The CUDA part compiled for the CPU, with tests/simt in place of CUDA's headers: host files by CC,
# kernels by CXX. Objects lie apart, in obj/.../simt.
SRC_simt := $(sort $(filter-out libfsdp/comm/% models/nn/cuda/backend.c models/nn/cuda/cudnn_%,$(CUDA_ALL)) \
	$(wildcard tests/simt/*.cc))
OBJ_simt := $(patsubst %,$(OBJ)/simt/%.o,$(SRC_simt))
SIMT_INC  = -Itests/simt/include -Itests/lib $(INC_$(firstword $(subst /, ,$<)))
SIMT_CXXFLAGS = -std=c++17 $(OPT) -g -pthread -D_GNU_SOURCE -Wall -Wextra -Wno-unknown-pragmas \
	$(if $(filter 1,$(WERROR)),-Werror) $(SANITIZE)
$(OBJ)/simt/%.c.o: %.c | $(READY)
	@mkdir -p $(@D)
	$(call step,SIMT,$<,$(OBJ)/simt)$(CC) $(SIMT_INC) $(CPPFLAGS) $(CFLAGS) -MMD -MP -c -o $@ $<
$(OBJ)/simt/%.cu.o: %.cu | $(READY)
	@mkdir -p $(@D)
	$(call step,SIMT,$<,$(OBJ)/simt)$(CXX) $(SIMT_INC) $(SIMT_CXXFLAGS) -MMD -MP -c -o $@ -x c++ $<
$(OBJ)/simt/%.cc.o: %.cc | $(READY)
	@mkdir -p $(@D)
	$(call step,SIMT,$<,$(OBJ)/simt)$(CXX) $(SIMT_INC) $(SIMT_CXXFLAGS) -MMD -MP -c -o $@ $<
# Hundreds of small functions, and a reader of text: optimising them takes longer than it saves.
$(addprefix $(OBJ)/simt/tests/simt/,ptx_compute.cc.o ptx_read.cc.o ptx_decode.cc.o): SIMT_CXXFLAGS += -O1 -g0
$(OBJ)/libsimt.a: $(OBJ_simt)
	$(call say,AR,$(@F))$(archive)
SIMT_TESTS := $(filter $(BIN)/tests/simt/%,$(TESTS))
$(patsubst $(BIN)/%,$(OBJ)/%.o,$(SIMT_TESTS)): INC_tests += -Itests/simt/include
$(SIMT_TESTS): $(BIN)/tests/%: $(OBJ)/tests/%.o $(call ar_of,tests) $(OBJ)/libsimt.a $(LIBS) $(FLAGS)
	@mkdir -p $(@D)
	$(call step,LD,$@)$(CXX) $(LDFLAGS) -o $@ $(filter %.o,$^) $(filter %.a,$^) $(LIBS_all)

# Tests that have attention by cuDNN, too, of which a stand-in executes the graphs.
CUDNN_SIM     := $(BIN)/tests/simt/test_cuda_cudnn $(BIN)/tests/simt/test_cuda_cudnn_dropout
CUDNN_SIM_SRC := models/nn/cuda/attention.c $(wildcard models/nn/cuda/cudnn_*.c tests/simt/cudnn/*.c)
$(OBJ)/simt-cudnn/%.o: %.c | $(READY)
	@mkdir -p $(@D)
	$(call step,SIMT,$<,$(OBJ)/simt-cudnn)$(CC) $(SIMT_INC) $(INC_models) $(CPPFLAGS) -DHAVE_CUDNN=1 \
		-Ddlopen=simt_cudnn_open -Ddlsym=simt_cudnn_symbol $(CFLAGS) -MMD -MP -c -o $@ $<
$(CUDNN_SIM): $(CUDNN_SIM_SRC:%.c=$(OBJ)/simt-cudnn/%.o)

# What nvcc makes of the device's kernels for each architecture, as PTX, which tests/simt/ptx.sh executes.
SRC_ptx  := $(filter libfsdp/device/%.cu,$(SRC_cuda))
PTX_LIST := $(if $(SRC_ptx),$(BIN)/tests/simt/ptx.list)
PTX_of = $(patsubst %.cu,$(OBJ)/ptx/sm_$(1)/%.ptx,$(SRC_ptx))
define ptx_rules
$(OBJ)/ptx/sm_$(1)/libfsdp/device/cuda/%.ptx: NVCCFLAGS += -fmad=false
$(OBJ)/ptx/sm_$(1)/%.ptx: %.cu | $(READY)
	@mkdir -p $$(@D)
	$$(call step,PTX,$$<,$(OBJ)/ptx/sm_$(1))$$(NVCC) $$(INC_$$(firstword $$(subst /, ,$$<))) \
		$$(filter-out -gencode arch=%,$$(NVCCFLAGS)) -arch=compute_$(1) -MMD -MP -MF $$(@:.ptx=.d) -ptx -o $$@ $$<
endef
$(foreach a,$(CUDA_SM),$(eval $(call ptx_rules,$(a))))
tests: $(PTX_LIST)
$(BIN)/tests/simt/ptx.list: $(foreach a,$(CUDA_SM),$(call PTX_of,$(a))) $(FLAGS)
	@mkdir -p $(@D)
	@printf '%s\n' $(filter %.ptx,$^) >$@

# The operators' kernels as PTX: what the library contains, for one architecture (tests/simt/ptx_nn.sh);
# and as nvcc makes it for the others, which takes minutes (check-ptx).
PTX_TOOL := $(if $(SRC_ptx),$(if $(filter 1,$(HAVE_ZSTD)),$(BIN)/tests/simt/library_ptx))
tests: $(PTX_TOOL)
$(BIN)/tests/simt/library_ptx: $(OBJ)/tests/simt/library_ptx.o $(FLAGS)
	@mkdir -p $(@D)
	$(call step,LD,$@)$(CC) $(LDFLAGS) -o $@ $(filter %.o,$^) -lzstd
PTX_REST := $(filter-out $(CUDA_PTX),$(CUDA_SM))
$(BIN)/tests/simt/ptx_nn.list: $(foreach a,$(PTX_REST),$(patsubst %.cu,$(OBJ)/ptx/sm_$(a)/%.ptx,$(filter %.cu,$(SRC_cuda)))) $(FLAGS)
	@mkdir -p $(@D)
	@printf '%s\n' $(filter %.ptx,$^) >$@

# A stand-in for the driver's NVML.
NVML_SIM := $(BIN)/tests/nvml/libnvidia-ml.so.1
tests: $(NVML_SIM)
$(NVML_SIM): $(OBJ)/tests/nvml/nvml.o $(FLAGS)
	@mkdir -p $(@D)
	$(call step,LD,$@)$(CC) -shared $(LDFLAGS) -o $@ $(filter %.o,$^)

# Tokens/s of published runs: `published FILE.csv`.
PUBLISHED := $(if $(filter %/plan/test_published,$(TESTS)),$(BIN)/tests/plan/published)
tests: $(PUBLISHED)
$(PUBLISHED): $(BIN)/tests/plan/test_published
	@ln -sf $(<F) $@

# A stand-in for libfsdp-cuda.so on the CPU, whose memory the host cannot touch.
OPAQUE := $(BIN)/tests/libfsdp-opaque.so
tests: $(OPAQUE)
$(OPAQUE): $(patsubst %,$(OBJ)/tests/opaque/%.o,opaque opaque_nn graphs pointers) $(OBJ)/libfsdp/device/cuda/cuda_nvtx.o \
		$(LIBS) scripts/libfsdp-cuda.map $(FLAGS)
	@mkdir -p $(@D)
	$(call step,LD,$@)$(CC) -shared $(LDFLAGS) -Wl,--version-script=scripts/libfsdp-cuda.map \
		-o $@ $(filter %.o %.a,$^) $(LIBS_all)

# What listens to NVTX's ranges in place of a profiler, where CUDA brought NVTX's headers.
NVTX_RECORDER := $(if $(SRC_cuda),$(BIN)/tests/opaque/libnvtx-recorder.so)
$(OBJ)/tests/opaque/nvtx_recorder.o: CPPFLAGS += $(CUDA_CPPFLAGS)
tests: $(NVTX_RECORDER)
$(BIN)/tests/opaque/libnvtx-recorder.so: $(OBJ)/tests/opaque/nvtx_recorder.o $(FLAGS)
	@mkdir -p $(@D)
	$(call step,LD,$@)$(CC) -shared $(LDFLAGS) -o $@ $(filter %.o,$^)

# GCC 12 for aarch64 breaks on loops of tests at -O3 ("in vect_transform_reduction"); not on those of
# the libraries and programs.
ifeq ($(TARGET_CPU)$(GCC_MAJOR),aarch6412)
$(OBJ)/tests/%.o: CFLAGS += -fno-tree-loop-vectorize
endif

# Installed archives are one object each, in which all names but the public ones are local. (Tests link
# those of $(OBJ), whose names are all to be had.)
define one_object
	@mkdir -p $(@D)
	$(call say,AR,$@)$(LD) -r -o $(OBJ)/$(notdir $@).o $(filter %.o,$^)
	$(Q)$(OBJCOPY) --wildcard --keep-global-symbol='$(1)_*' $(OBJ)/$(notdir $@).o
	$(Q)rm -f $@ && $(AR) rcs $@ $(OBJ)/$(notdir $@).o
endef
$(LIB)/libfsdp.a: $(patsubst %.c,$(OBJ)/%.o,$(SRC_fsdp)) $(FLAGS)
	$(call one_object,fsdp)
$(LIB)/libckpt.a: $(patsubst %.c,$(OBJ)/%.o,$(SRC_ckpt)) $(FLAGS)
	$(call one_object,ckpt)

# $(call link_shared,LIBRARY,LIBRARIES IT NEEDS): with its soname, map and links.
define link_shared
	@mkdir -p $(@D)
	$(call step,LD,$@)$(CC) -shared $(LDFLAGS) $(if $(SANITIZE),,-Wl,-z,defs) -Wl,-soname,$(1).so.$(MAJOR) \
		-Wl,--version-script=scripts/$(1).map -o $@ $(filter %.o,$^) $(2)
	$(Q)ln -sf $(1).so.$(VERSION) $(LIB)/$(1).so.$(MAJOR) && ln -sf $(1).so.$(MAJOR) $(LIB)/$(1).so
endef
$(call shared_of,libfsdp): $(patsubst %.c,$(OBJ)/%.o,$(SRC_fsdp)) scripts/libfsdp.map $(FLAGS)
	$(call link_shared,libfsdp,$(call pkg_libs,$(PKGS_fsdp)) -lm -ldl -lrt)
$(call shared_of,libckpt): $(patsubst %.c,$(OBJ)/%.o,$(SRC_ckpt)) $(call shared_of,libfsdp) scripts/libckpt.map $(FLAGS)
	$(call link_shared,libckpt,-L$(LIB) -lfsdp $(call pkg_libs,$(PKGS_ckpt)) -lm -lrt)

# The bootstrap for programs of others. Both forms show fsdp/launch.h alone.
$(OBJ)/launcher/boot/pmix_lib.o: CPPFLAGS += -DPMIX_LIBDIR='"$(shell pkg-config --variable=libdir pmix)"'
OBJ_launch := $(patsubst %.c,$(OBJ)/%.o,$(SRC_launch))
$(call shared_of,libfsdp-launch): $(OBJ_launch) $(call shared_of,libfsdp) scripts/libfsdp-launch.map $(FLAGS)
	$(call link_shared,libfsdp-launch,-L$(LIB) -lfsdp $(call pkg_libs,$(PKGS_launch)) -ldl)
$(LIB)/libfsdp-launch.a: $(OBJ_launch) $(FLAGS)
	$(call one_object,fsdp_launch)

# Complete in itself: of libfsdp it holds copies of what it uses, and shows one table alone.
$(LIB)/libfsdp-cuda.so: $(OBJ_cuda) $(OBJ)/models/nn/cuda_sizes.o $(call ar_of,fsdp) scripts/libfsdp-cuda.map $(FLAGS)
	@mkdir -p $(@D)
	$(call step,LD,$@)$(CC) -shared $(LDFLAGS) -Wl,-z,defs -Wl,-soname,$(@F) \
		-Wl,--version-script=scripts/libfsdp-cuda.map -o $@ $(filter %.o %.a,$^) $(CUDA_LIBS)
	$(Q)cat $(patsubst %.o,%.ptxas,$(filter %.cu.o,$^)) >$(@:.so=.ptxas)

# Of its kind, too.
OBJ_mpi := $(patsubst %.c,$(OBJ)/%.o,$(if $(MPI_SHARED),$(MPI_ALL)))
$(OBJ_mpi): CPPFLAGS += $(patsubst -I%,-isystem %,$(call pkg_cflags,$(MPI_PKG)))
$(LIB)/libfsdp-mpi.so: $(OBJ_mpi) $(call ar_of,fsdp) scripts/libfsdp-mpi.map $(FLAGS)
	@mkdir -p $(@D)
	$(call step,LD,$@)$(CC) -shared $(LDFLAGS) $(if $(SANITIZE),,-Wl,-z,defs) -Wl,-soname,$(@F) \
		-Wl,--version-script=scripts/libfsdp-mpi.map -o $@ $(filter %.o %.a,$^) $(call pkg_libs,$(MPI_PKG)) -lm -ldl -lrt

# A library like it for tests without a GPU: comm/nccl on a stand-in for NCCL.
NCCL_SIM_SRC := $(wildcard libfsdp/comm/nccl/*.c tests/simt/nccl/*.c)
NCCL_SIM_OBJ := $(patsubst %.c,$(OBJ)/nccl-sim/%.o,$(NCCL_SIM_SRC))
$(NCCL_SIM_OBJ): $(OBJ)/nccl-sim/%.o: %.c | $(READY)
	@mkdir -p $(@D)
	$(call step,CC,$<,$(OBJ)/nccl-sim)$(CC) -Itests/simt/include $(INC_libfsdp) $(CPPFLAGS) $(CFLAGS) -MMD -MP -c -o $@ $<
$(NCCL_SIM): $(NCCL_SIM_OBJ) $(call ar_of,fsdp) scripts/libfsdp-cuda.map $(FLAGS)
	@mkdir -p $(@D)
	$(call step,LD,$@)$(CC) -shared $(LDFLAGS) $(if $(SANITIZE),,-Wl,-z,defs) \
		-Wl,--version-script=scripts/libfsdp-cuda.map -o $@ $(filter %.o %.a,$^) -lm -ldl -lrt

include packaging/install.mk
include packaging/wheel.mk

# ---- housekeeping -------------------------------------------------------------------------------

## format           rewrite C files in house style (clang-format)
format:
	clang-format -i $(C_FILES)

## lint             show what is not in house style: layout, long functions and files
lint:
	@scripts/lint.sh $(C_FILES)

## clean            remove everything built, the demo's results too (build/venv*, build/roots, build/wheel-deps stay)
clean:
	rm -rf $(filter-out build/venv% build/roots build/wheel-deps,$(wildcard build/* build/.steps))

## list             show this list
list:
	@sed -n 's/^## //p' Makefile packaging/*.mk

-include $(shell test -d $(OBJ) && find $(OBJ) -name '*.d')
