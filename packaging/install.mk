# SPDX-License-Identifier: Apache-2.0
# make install, uninstall, dist, deb, rpm: what goes where, and where paths and versions are filled in.

bindir     := $(PREFIX)/bin
libdir     ?= $(PREFIX)/lib
includedir := $(PREFIX)/include
mandir     := $(PREFIX)/share/man
datadir    := $(PREFIX)/share/fsdp
docdir     := $(PREFIX)/share/doc/fsdp
pcdir      := $(libdir)/pkgconfig
plugindir  := $(libdir)/fsdp
# Where shells look for completions; Debian's zsh looks in share/zsh/vendor-completions.
bashdir    ?= $(PREFIX)/share/bash-completion/completions
zshdir     ?= $(PREFIX)/share/zsh/site-functions
fishdir    ?= $(PREFIX)/share/fish/vendor_completions.d
# What uninstall reads.
MANIFEST   := $(datadir)/installed.txt

INST  := $(B)/install
PLAIN := $(foreach p,$(PROGRAMS),$(call plain_of,$(p)))
MAN   := $(wildcard docs/man/*.[13])
PAGES := README.md LICENSE NOTICE CHANGELOG.md SECURITY.md CONTRIBUTING.md models/README.md \
	$(sort $(shell find docs -type f -not -path 'docs/man/*'))
EXAMPLES := $(sort $(shell find examples -type f))
SCRIPTS  := $(filter-out slurm/fsdp.%,$(wildcard slurm/*))
RELEASED := $(shell sed -n 's/^.. $(VERSION) (\(.*\))$$/\1/p' CHANGELOG.md)

# $(call filled,PATTERNS): files whose paths are filled in lie below $(INST)/filled, under their own names.
FILLED := $(INST)/filled
filled  = $(addprefix $(FILLED)/,$(1))
FILL = sed -e 's|@PREFIX@|$(PREFIX)|g' -e 's|@LIBDIR@|$(libdir)|g' -e 's|@VERSION@|$(VERSION)|g'
# Example configurations name folders of the source tree, which a user has not.
FILL_yaml := -e 's|: examples/|: $(datadir)/examples/|' -e 's|\[docs, libfsdp/include\]|[$(datadir)/examples/mlp, $(datadir)/examples/blocks, $(datadir)/slurm]|' \
	-e 's|: README.md|: $(datadir)/examples/gradcheck/gradcheck.c|' -e 's|launch \(.*\) examples/|launch \1 $(datadir)/examples/|' \
	-e 's|Start it in the source tree:|Start it in a folder of your own:|'

define nl


endef
# A line for each file: mode, source, destination.
to = $(foreach f,$(2),$(1) $(f) $(3)/$(notdir $(f))$(nl))
tree = $(foreach f,$(2),$(1) $(call filled,$(f)) $(3)/$(f:$(4)/%=%)$(nl))
define install_list
$(call to,755,$(PLAIN),$(bindir))
$(call to,644,$(filter libfsdp/include/fsdp/% launcher/%,$(filter-out libfsdp/include/fsdp/sys/%,$(HEADERS))),$(includedir)/fsdp)
$(call to,644,$(filter libfsdp/include/fsdp/sys/%,$(HEADERS)),$(includedir)/fsdp/sys)
$(call to,644,$(filter-out ckpt/include/ckpt/sys/%,$(filter ckpt/%,$(HEADERS))),$(includedir)/ckpt)
$(call to,644,$(filter ckpt/include/ckpt/sys/%,$(HEADERS)),$(includedir)/ckpt/sys)
$(call to,644,$(filter %.a,$(LIBRARIES)),$(libdir))
$(foreach s,$(SHARED_LIBS),755 $(LIB)/$(s).so.$(VERSION) $(libdir)/$(s).so.$(VERSION)$(nl)link $(s).so.$(VERSION) $(libdir)/$(s).so.$(MAJOR)$(nl)link $(s).so.$(MAJOR) $(libdir)/$(s).so$(nl))
$(call to,755,$(CUDA_SHARED) $(MPI_SHARED),$(plugindir))
$(call to,644,$(call filled,fsdp.pc fsdp-launch.pc ckpt.pc),$(pcdir))
$(call to,644,$(call filled,$(filter %.1,$(MAN))),$(mandir)/man1)
$(call to,644,$(call filled,$(filter %.3,$(MAN))),$(mandir)/man3)
$(call tree,644,$(EXAMPLES),$(datadir)/examples,examples)
$(call to,644,models/check/gradcheck.c models/check/gradcheck.h,$(datadir)/examples/gradcheck)
$(call tree,site,$(filter %/env.sh,$(SCRIPTS)),$(datadir)/slurm,slurm)
$(call tree,755,$(filter-out %/env.sh %.md,$(SCRIPTS)),$(datadir)/slurm,slurm)
$(call tree,644,$(filter %.md,$(SCRIPTS)),$(datadir)/slurm,slurm)
$(call to,644,$(wildcard scripts/metrics_to_wandb.py),$(datadir)/scripts)
644 $(call filled,slurm/fsdp.modulefile) $(datadir)/modulefiles/tcl/fsdp/$(VERSION)
644 $(call filled,slurm/fsdp.lua) $(datadir)/modulefiles/lua/fsdp/$(VERSION).lua
$(foreach f,$(PAGES),644 $(f) $(docdir)/$(f)$(nl))
link ../../fsdp/examples $(docdir)/examples
link ../../fsdp/slurm $(docdir)/slurm
link ../../../man/man1 $(docdir)/docs/man
endef

# Where the paths of files are filled in, and completions asked for: a program has them if it knows --completion.
.PHONY: install-files
install-files: all $(PLAIN)
	@scripts/install.sh check '$(PREFIX)' '$(libdir)'
	@rm -rf $(FILLED) && mkdir -p $(FILLED)
	@for p in fsdp fsdp-launch ckpt; do $(FILL) scripts/$$p.pc.in >$(FILLED)/$$p.pc.in || exit 1; done
	@sed -e 's|@PKGS@|$(PKGS_fsdp)|' $(FILLED)/fsdp.pc.in >$(FILLED)/fsdp.pc
	@sed -e 's|@PKGS@|$(PKGS_launch)|' $(FILLED)/fsdp-launch.pc.in >$(FILLED)/fsdp-launch.pc
	@sed -e 's|@LIBS@|$(call pkg_libs,$(PKGS_ckpt))|' $(FILLED)/ckpt.pc.in >$(FILLED)/ckpt.pc
	@for f in $(MAN) $(EXAMPLES) $(SCRIPTS) slurm/fsdp.modulefile slurm/fsdp.lua; do \
		mkdir -p $(FILLED)/$$(dirname $$f) && case $$f in \
		docs/man/*) sed 's/^\(\.TH [^ ]* [1-9]\) "[^"]*" "libfsdp [^"]*"/\1 "$(RELEASED)" "libfsdp $(VERSION)"/' $$f ;; \
		*.yaml) sed $(FILL_yaml) $$f ;; \
		*.c) sed 's|\.\./\.\./models/check|../gradcheck|g' $$f ;; \
		slurm/*) $(FILL) $$f ;; \
		*) cat $$f ;; esac >$(FILLED)/$$f || exit 1; done
	$(shell mkdir -p $(INST))$(file >$(INST)/list.raw,$(install_list))
	@sed '/^ *$$/d; s/^ *//' $(INST)/list.raw >$(INST)/list
	@mkdir -p $(FILLED)/complete; for p in $(PLAIN); do n=$${p##*/}; c=$(FILLED)/complete; \
		for s in bash:$(bashdir)/$$n zsh:$(zshdir)/_$$n fish:$(fishdir)/$$n.fish; do \
		if $$p --completion $${s%%:*} >$$c/$$n.$${s%%:*} 2>/dev/null && [ -s $$c/$$n.$${s%%:*} ]; then \
		echo "644 $$c/$$n.$${s%%:*} $${s#*:}"; fi; done; done >>$(INST)/list

## install          install under PREFIX (/usr/local) below DESTDIR; uninstall removes it again
install: install-files
	$(call say,INST,$(DESTDIR)$(PREFIX))scripts/install.sh install $(INST)/list $(MANIFEST) '$(DESTDIR)'

uninstall:
	@scripts/install.sh check '$(PREFIX)' '$(libdir)'
	$(call say,RM,$(DESTDIR)$(PREFIX))scripts/install.sh uninstall $(MANIFEST) '$(DESTDIR)'

## dist             the source archive: build/dist/libfsdp-VERSION.tar.gz
dist:
	@scripts/dist.sh $(VERSION)

## deb              Debian packages for this release, in build/dist/deb; make rpm the same for Fedora
deb rpm:
	@scripts/package.sh $@ $(VERSION)

## check-packages   builds packages in clean roots of Debian 12 and 13, installs them in fresh ones, and runs
##                  programs there; images, rpm and recipes too (as root; T='tests/packages/deb12.sh')
check-packages: all
	@$(DEPS) packages
	@TOP='$(CURDIR)' BIN='$(abspath $(BIN))' tests/run -j 1 -v $(RUNFLAGS) $(or $(T),tests/packages)

.PHONY: install uninstall dist deb rpm check-packages
