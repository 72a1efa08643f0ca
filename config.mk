# SPDX-License-Identifier: Apache-2.0
# What this build uses. Every WITH_X is auto (use it if it is here), 1 (fail if it is not) or 0.

PREFIX  ?= /usr/local
CC      ?= cc
OPT     ?= -O3 -march=x86-64-v3
WERROR  ?= 0

WITH_PMIX ?= auto

CSTD  := -std=gnu11
CWARN := -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wvla -Wformat=2
ifeq ($(WERROR),1)
CWARN += -Werror
endif

# $(call probe,NAME,pkg-config package): sets HAVE_NAME, adds to PKGS, or stops where WITH_NAME=1.
define probe
HAVE_$(1) := $$(if $$(filter 0,$$(WITH_$(1))),0,$$(shell pkg-config --exists $(2) && echo 1 || echo 0))
ifeq ($$(WITH_$(1))$$(HAVE_$(1)),10)
$$(error WITH_$(1)=1, but pkg-config does not find '$(2)'; install it (scripts/deps.sh lists packages) or use WITH_$(1)=0)
endif
ifeq ($$(HAVE_$(1)),1)
PKGS += $(2)
endif
endef

# Always needed; scripts/deps.sh installs them.
REQUIRED := libisal jansson yaml-0.1 libcrypto
PKGS := $(REQUIRED)
$(eval $(call probe,PMIX,pmix))

CBLAS_CFLAGS ?= $(shell pkg-config --cflags openblas 2>/dev/null)
CBLAS_LIBS   ?= $(shell pkg-config --libs openblas 2>/dev/null || echo -lopenblas)
