# SPDX-License-Identifier: Apache-2.0
# make wheel, check-wheel: the checkpoint library and its tools for Python.

# What scripts/wheel.sh packs: one library with all of libfsdp and libckpt, and tools that are linked to it.
WHEEL          := $(B)/wheel
WHEEL_LIB      := $(WHEEL)/libckpt.so.$(MAJOR)
WHEEL_PROGRAMS := $(foreach s,$(CKPT_SRC),$(WHEEL)/bin/$(notdir $(call prog_of,$(s))))

$(WHEEL)/libckpt.map: scripts/libckpt.map
	@mkdir -p $(@D)
	@sed 's/global:/global: fsdp_*;/' $< >$@
$(WHEEL_LIB): $(patsubst %.c,$(OBJ)/%.o,$(SRC_fsdp) $(SRC_ckpt)) $(WHEEL)/libckpt.map $(FLAGS)
	$(call step,LD,$@)$(CC) -shared $(LDFLAGS) -Wl,-s,-z,defs,-soname,$(@F) -Wl,--version-script=$(WHEEL)/libckpt.map \
		-o $@ $(filter %.o,$^) $(call pkg_libs,$(PKGS_fsdp) $(PKGS_ckpt)) -lm -ldl -lrt
$(WHEEL_PROGRAMS): $(WHEEL)/bin/%: $(call ar_of,tool) $(WHEEL_LIB) $(FLAGS)
	@mkdir -p $(@D)
	$(call step,LD,$@)$(CC) $(LDFLAGS) -Wl,-s,-rpath,'$$ORIGIN/..' -o $@ $(filter $(OBJ)/ckpt/tools/%.o,$^) \
		$(filter %.a,$^) $(WHEEL_LIB) $(call pkg_libs,jansson) -lm
$(foreach s,$(CKPT_SRC),$(eval $(WHEEL)/bin/$(notdir $(call prog_of,$(s))): $(OBJ)/$(basename $(s)).o))
wheel-files: $(WHEEL_LIB) $(WHEEL_PROGRAMS)

## wheel            a wheel for Python (build/dist/fsdp_ckpt-*.whl): the tools ckpt-*, and the module fsdp_ckpt; for any
##                  Linux on x86-64 with glibc 2.28 (compilers from PyPI, libraries from Debian's sources: the first takes
##                  10 minutes)
wheel:
	@$(DEPS) wheel
	@scripts/with_python.sh wheel scripts/wheel.sh $(VERSION)

## check-wheel      builds it, installs it into fresh environments, and compares what it reads with PyTorch
check-wheel:
	@$(DEPS) interop
	@$(DEPS) wheel
	@$(MAKE) $(JOBS) all
	@scripts/with_python.sh wheel scripts/wheel.sh $(VERSION)
	@$(MAKE) check-wheel-run

check-wheel-run:
	@TOP='$(CURDIR)' BIN='$(abspath $(BIN))' TEST_CC='$(CC)' scripts/with_python.sh torch scripts/with_python.sh wheel \
		tests/run -j 1 $(RUNFLAGS) $(or $(T),tests/wheel)

.PHONY: wheel wheel-files check-wheel check-wheel-run
