-- SPDX-License-Identifier: Apache-2.0
-- For `module load fsdp`, with Lmod. `make install` fills in the paths; then
--     module use @PREFIX@/share/fsdp/modulefiles/lua
help("libfsdp @VERSION@: man fsdp-launch; @PREFIX@/share/doc/fsdp")
whatis("Fully sharded data-parallel training for Slurm clusters, version @VERSION@")
conflict("fsdp")
prepend_path("PATH", "@PREFIX@/bin")
prepend_path("MANPATH", "@PREFIX@/share/man")
append_path("MANPATH", "")
prepend_path("LD_LIBRARY_PATH", "@LIBDIR@")
prepend_path("PKG_CONFIG_PATH", "@LIBDIR@/pkgconfig")
-- What slurm/*.sbatch read.
setenv("FSDP_ENV", "@PREFIX@/share/fsdp/slurm/env.sh")
