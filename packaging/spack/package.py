# SPDX-License-Identifier: Apache-2.0
# NOT BUILT: no Spack has built this recipe yet. To try it:
#
#     mkdir -p REPO/packages/libfsdp && cp packaging/spack/package.py REPO/packages/libfsdp/
#     (a repo.yaml in REPO), spack repo add REPO, make dist,
#     spack install libfsdp
#
# LIBFSDP_DIST names the folder with the archive that `make dist` wrote.
import os

from spack.package import *


class Libfsdp(MakefilePackage):
    """Fully sharded data-parallel training under Slurm, and sharded checkpoints, in C without Python."""

    license("Apache-2.0")

    version(
        "0.2.0",
        url="file://%s/libfsdp-0.2.0.tar.gz" % os.environ.get("LIBFSDP_DIST", os.getcwd() + "/build/dist"),
        expand=True,
    )

    variant("pmix", default=True, description="Start under Slurm's and mpirun's PMIx")
    variant("hwloc", default=True, description="Bind ranks to cores")
    variant("zstd", default=True, description="Compressed checkpoints")
    variant("s3", default=True, description="Checkpoints on S3")
    variant("png", default=True, description="PNG pictures of fsdp-plot")
    variant("dnnl", default=False, description="Products of oneDNN, with AVX-512")
    variant("mpi", default=False, description="fsdp.backend=mpi")
    variant("cuda", default=False, description="GPUs")

    depends_on("c", type="build")
    depends_on("cxx", type="build", when="+cuda")
    depends_on("gmake", type="build")
    depends_on("pkgconfig", type="build")
    depends_on("isa-l")
    depends_on("jansson")
    depends_on("libyaml")
    depends_on("pcre2")
    depends_on("utf8proc")
    depends_on("zlib-api")
    depends_on("openssl")
    depends_on("blas")
    depends_on("openblas", when="^[virtuals=blas] openblas")
    depends_on("pmix", when="+pmix")
    depends_on("hwloc@2:", when="+hwloc")
    depends_on("zstd", when="+zstd")
    depends_on("curl", when="+s3")
    depends_on("expat", when="+s3")
    depends_on("cairo+png", when="+png")
    depends_on("onednn", when="+dnnl")
    depends_on("mpi", when="+mpi")
    depends_on("cuda@12:", when="+cuda")
    depends_on("nccl", when="+cuda")

    def settings(self):
        switches = {"pmix": "PMIX", "hwloc": "HWLOC", "zstd": "ZSTD", "s3": "CURL", "png": "CAIRO", "dnnl": "DNNL", "mpi": "MPI", "cuda": "CUDA"}
        given = ["WITH_%s=%d" % (name, int("+" + variant in self.spec)) for variant, name in switches.items()]
        blas = self.spec["blas"]
        given.append("CBLAS_CFLAGS=" + blas.headers.include_flags)
        given.append("CBLAS_LIBS=" + blas.libs.ld_flags)
        given.append("PREFIX=" + self.prefix)
        # Spack's compiler wrapper chooses the instructions.
        given.append("OPT=-O3")
        if "+cuda" in self.spec:
            given.append("CUDA_HOME=" + self.spec["cuda"].prefix)
        return given

    def build(self, spec, prefix):
        make("all", *self.settings())

    def install(self, spec, prefix):
        make("install", *self.settings())

    def test_version(self):
        """the programs start"""
        for name in ("fsdp-launch", "ckpt-info"):
            Executable(join_path(self.prefix.bin, name))("--version")
