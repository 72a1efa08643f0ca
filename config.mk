# SPDX-License-Identifier: Apache-2.0
# What this build uses. Set anything here on the command line: make WITH_PMIX=0 PREFIX=/opt/fsdp

PREFIX  ?= /usr/local
CC      ?= cc
OBJCOPY ?= objcopy
# x86-64-v3 (AVX2, FMA: 2013 and later). OPT='-O3 -march=native' for this machine alone.
TARGET  := $(or $(shell $(CC) -dumpmachine 2>/dev/null),$(shell uname -m))
OPT     ?= -O3 $(if $(filter x86_64-%,$(TARGET)-),-march=x86-64-v3)
WERROR  ?= 0
V       ?= 0
# 0: no folder of a library is written into programs. Packages of distributions may have none.
RPATH   ?= 1

# Optional parts: auto (use it if it is here), 1 (stop if it is not) or 0.
WITH_PMIX ?= auto
WITH_HWLOC ?= auto
WITH_ZSTD ?= auto
WITH_DNNL ?= auto
WITH_MPI  ?= auto
WITH_CUDA ?= auto
WITH_NCCL ?= auto
WITH_CUDNN ?= auto
WITH_CURL ?= auto
WITH_CAIRO ?= auto

CSTD  := -std=gnu11
CWARN := -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wvla -Wformat=2 -Wpointer-arith
ifeq ($(WERROR),1)
CWARN += -Werror
endif

# pkg-config packages that each library needs; programs link those of the libraries they use, so
# that the checkpoint tools need no PMIx, BLAS or YAML at run time.
PKGS_fsdp   :=
PKGS_boot   := libcrypto
PKGS_launch := libcrypto
PKGS_ckpt   := libisal jansson
PKGS_models := libisal jansson yaml-0.1 libpcre2-8 libutf8proc zlib
PKGS_plot   := # fsdp-plot alone
PKGS_headers := # opened at run time, not linked
REQUIRED    := $(sort $(PKGS_fsdp) $(PKGS_boot) $(PKGS_ckpt) $(PKGS_models))

# $(call probe,NAME,pkg-config package,library): sets HAVE_NAME and adds the package to what the
# library needs, or stops where WITH_NAME=1.
define probe
ifeq ($$(filter auto 0 1,$$(WITH_$(1))),)
$$(error WITH_$(1)=$$(WITH_$(1)): use auto, 1 or 0)
endif
HAVE_$(1) := $$(if $$(filter 0,$$(WITH_$(1))),0,$$(shell pkg-config --exists $(2) 2>/dev/null && echo 1 || echo 0))
ifeq ($$(WITH_$(1))$$(HAVE_$(1)),10)
$$(error WITH_$(1)=1, but pkg-config does not find '$(2)'; scripts/deps.sh installs it, WITH_$(1)=0 does without)
endif
ifeq ($$(HAVE_$(1)),1)
PKGS_$(3) += $(2)
endif
endef
$(eval $(call probe,PMIX,pmix,headers))
$(eval $(call probe,HWLOC,hwloc,boot))
$(eval $(call probe,ZSTD,libzstd,ckpt))
$(eval $(call probe,CURL,libcurl libcrypto expat,ckpt))
$(eval $(call probe,CAIRO,cairo,plot))

# MPI, for libfsdp-mpi.so alone: Open MPI or MPICH by their pkg-config files.
ifeq ($(filter auto 0 1,$(WITH_MPI)),)
$(error WITH_MPI=$(WITH_MPI): use auto, 1 or 0)
endif
MPI_PKG  := $(if $(filter 0,$(WITH_MPI)),,$(firstword $(foreach p,ompi-c mpich,$(shell \
	pkg-config --exists $(p) 2>/dev/null && echo $(p)))))
HAVE_MPI := $(if $(MPI_PKG),1,0)
ifeq ($(WITH_MPI)$(HAVE_MPI),10)
$(error WITH_MPI=1, but pkg-config finds neither 'ompi-c' nor 'mpich'; scripts/deps.sh check installs one, WITH_MPI=0 does without)
endif

# oneDNN has no pkg-config file everywhere: its header tells.
ifeq ($(filter auto 0 1,$(WITH_DNNL)),)
$(error WITH_DNNL=$(WITH_DNNL): use auto, 1 or 0)
endif
HAVE_DNNL := $(if $(filter 0,$(WITH_DNNL)),0,$(shell \
	$(CC) -include oneapi/dnnl/dnnl.h -E -x c /dev/null >/dev/null 2>&1 && echo 1 || echo 0))
ifeq ($(WITH_DNNL)$(HAVE_DNNL),10)
$(error WITH_DNNL=1, but there is no oneapi/dnnl/dnnl.h; scripts/deps.sh installs it, WITH_DNNL=0 does without)
endif
DNNL_LIBS := $(if $(filter 1,$(HAVE_DNNL)),-ldnnl)

# GEMM for models: any CBLAS. For another one: make CBLAS_CFLAGS=... CBLAS_LIBS=...
CBLAS_CFLAGS ?= $(shell pkg-config --cflags openblas 2>/dev/null)
CBLAS_LIBS   ?= $(shell pkg-config --libs openblas 2>/dev/null || echo -lopenblas)

# CUDA: libfsdp-cuda.so, where there is nvcc and a C++ compiler for it. NCCL and cuDNN are looked for
# in CUDA_HOME and among the system's headers. Sanitizer builds do without: nvcc's code has none.
CUDA_HOME ?= $(firstword $(patsubst %/bin/nvcc,%,$(shell command -v nvcc)) $(wildcard /usr/local/cuda) \
	$(shell ls -d /usr/local/cuda-* 2>/dev/null | sort -rV))
NVCC      ?= $(CUDA_HOME)/bin/nvcc
CUDA_LIB  ?= $(firstword $(wildcard $(foreach d,lib64 lib targets/$(shell uname -m)-linux/lib targets/sbsa-linux/lib,$(CUDA_HOME)/$(d))))
# Real architectures to compile for, and the one whose PTX newer GPUs translate.
CUDA_SM   ?= 80 90
CUDA_PTX  ?= 90
comma := ,
# $(call cuda_probe,NAME,test that it is there,what is missing)
define cuda_probe
ifeq ($$(filter auto 0 1,$$(WITH_$(1))),)
$$(error WITH_$(1)=$$(WITH_$(1)): use auto, 1 or 0)
endif
HAVE_$(1) := $$(if $$(or $$(filter 0,$$(WITH_$(1))),$$(SANITIZE)),0,$$(shell $(2) >/dev/null 2>&1 && echo 1 || echo 0))
ifeq ($$(WITH_$(1))$$(HAVE_$(1)),10)
$$(error WITH_$(1)=1, but $(if $(SANITIZE),a sanitizer build has no CUDA,$(3)); WITH_$(1)=0 does without)
endif
endef
has_header = echo '\#include <$(1)>' | $(CC) -E -I$(CUDA_HOME)/include -x c -
$(eval $(call cuda_probe,CUDA,test -x $(NVCC) && test -f $(CUDA_HOME)/include/cuda_runtime.h && \
	test -f $(CUDA_LIB)/libcudart_static.a && command -v g++ c++,one of $(NVCC)$(comma) its \
	headers$(comma) libcudart_static.a and g++ is not there; set CUDA_HOME))
ifeq ($(HAVE_CUDA),0)
ifneq ($(filter 1,$(WITH_NCCL) $(WITH_CUDNN)),)
$(error WITH_NCCL=1 and WITH_CUDNN=1 need CUDA, which this build has not; see WITH_CUDA=1)
endif
HAVE_NCCL  := 0
HAVE_CUDNN := 0
else
$(eval $(call cuda_probe,NCCL,$(call has_header,nccl.h),there is no nccl.h in $(CUDA_HOME)/include))
$(eval $(call cuda_probe,CUDNN,$(call has_header,cudnn.h),there is no cudnn.h in $(CUDA_HOME)/include))
endif
NVCC_LAUNCHER ?= $(shell command -v ccache)
