# SPDX-License-Identifier: Apache-2.0
# `make list` shows the targets.

include config.mk

INCLUDES := -Ilibfsdp/include -Ilauncher/include -Ickpt/include -Imodels
CPPFLAGS += $(INCLUDES) -D_GNU_SOURCE -DHAVE_PMIX=$(HAVE_PMIX)
CFLAGS   += $(CSTD) $(OPT) -g -fPIC -pthread $(CWARN) $(SANITIZE)
PKG_CFLAGS := $(shell pkg-config --cflags $(PKGS) 2>/dev/null) $(CBLAS_CFLAGS)
PKG_LIBS   := $(shell pkg-config --libs $(PKGS) 2>/dev/null) $(CBLAS_LIBS)
LDLIBS   += $(PKG_LIBS) -lm -ldl -lrt
LDFLAGS  += -Wl,--as-needed -pthread $(SANITIZE)

# One object folder per compiler and flag set, so that builds never mix.
FLAGHASH := $(shell printf '%s' '$(CC) $(CPPFLAGS) $(CFLAGS) $(PKG_CFLAGS) $(PKG_LIBS)' | cksum | cut -d' ' -f1)
OBJ := build/obj/$(FLAGHASH)
BIN ?= build/bin

SRC_fsdp   := $(sort $(wildcard libfsdp/*/*.c))
SRC_boot   := $(sort $(wildcard launcher/*.c))
SRC_ckpt   := $(sort $(wildcard ckpt/*.c))
SRC_models := $(sort $(wildcard models/*.c models/nn/*.c))
SRC_tests  := $(sort $(wildcard tests/lib/*.c))
ifneq ($(HAVE_PMIX),1)
SRC_boot := $(filter-out launcher/boot_pmix.c,$(SRC_boot))
endif

lib_of = $(OBJ)/lib$(1).a
LIBS := $(foreach l,models ckpt boot fsdp,$(call lib_of,$(l)))

TOOLS := $(patsubst ckpt/tools/%.c,%,$(wildcard ckpt/tools/*.c)) $(patsubst models/tools/%.c,%,$(wildcard models/tools/*.c))
PROGRAMS := $(addprefix $(BIN)/,$(subst _,-,$(TOOLS)))
TESTS := $(patsubst tests/%.c,$(BIN)/tests/%,$(sort $(wildcard tests/*/test_*.c)))

.DEFAULT_GOAL := all
.SECONDARY:
.PHONY: all list tests clean

## all: build the programs and libraries
all: $(PROGRAMS)

## tests: build the test programs
tests: $(TESTS)

## list: show this list
list:
	@sed -n 's/^## //p' Makefile

$(OBJ)/tests/%.o: CPPFLAGS += -Itests/lib

$(OBJ)/%.o: %.c
	@mkdir -p $(@D)
	$(CC) $(CPPFLAGS) $(PKG_CFLAGS) $(CFLAGS) -MMD -MP -c -o $@ $<

define library
$(call lib_of,$(1)): $$(patsubst %.c,$(OBJ)/%.o,$$(SRC_$(1)))
	@mkdir -p $$(@D)
	@rm -f $$@
	$(AR) rcs $$@ $$^
endef
$(foreach l,fsdp boot ckpt models tests,$(eval $(call library,$(l))))

define tool
$(BIN)/$(subst _,-,$(notdir $(basename $(1)))): $(OBJ)/$(basename $(1)).o $(LIBS)
	@mkdir -p $$(@D)
	$(CC) $(LDFLAGS) -o $$@ $$^ $(LDLIBS)
endef
$(foreach t,$(wildcard ckpt/tools/*.c models/tools/*.c),$(eval $(call tool,$(t))))

$(BIN)/tests/%: $(OBJ)/tests/%.o $(call lib_of,tests) $(LIBS)
	@mkdir -p $(@D)
	$(CC) $(LDFLAGS) -o $@ $< $(call lib_of,tests) $(LIBS) $(LDLIBS)

## clean: remove everything built
clean:
	rm -rf build

-include $(shell test -d $(OBJ) && find $(OBJ) -name '*.d')

.PHONY: libfsdp libboot libckpt libmodels
libfsdp: $(call lib_of,fsdp)
libboot: $(call lib_of,boot)
libckpt: $(call lib_of,ckpt)
libmodels: $(call lib_of,models)
