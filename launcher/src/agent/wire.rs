//! What a launcher and its agents say to each other.

use std::ffi::OsString;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::bind::Bind;
use crate::error::ErrorKind;
use crate::output::Stream;
use crate::plan::{Plan, Surroundings};
use crate::process::Exit;
use crate::wire::bytes;

/// The one argument that makes the `ucxrun` binary an agent.
pub const AGENT: &str = "--internal-agent";
/// An agent's first bytes, which no login script writes by chance; then its version in 8 digits and a line end.
pub(crate) const HELLO: &[u8] = b"\n\x01ucxrun agent ";
pub(crate) const VERSION_DIGITS: usize = 8;
/// Most bytes of output that an agent sends before the launcher has taken them.
pub(crate) const WINDOW: usize = 1 << 20;
/// The same for input, the other way.
pub(crate) const INPUT_WINDOW: usize = 1 << 18;

/// A launcher to its agents.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum ToAgent {
    /// Start agents for these hosts, and pass on what is said to them.
    Grow(Branch),
    /// The job; for all.
    Job(Box<Brief>),
    /// Start these ranks.
    Ranks(Vec<u32>),
    /// A frame for a rank, or for all that have joined here.
    Frame {
        rank: Option<u32>,
        #[serde(with = "bytes")]
        frame: Vec<u8>,
    },
    /// Close a rank's connection.
    Close(u32),
    /// A signal for these ranks' process groups, or for all. With `wake`, SIGCONT after it.
    Signal {
        signal: i32,
        wake: bool,
        ranks: Option<Vec<u32>>,
    },
    /// So many bytes of output have been taken.
    Taken(usize),
    /// Nobody reads this stream any more.
    CloseOutput(Stream),
    /// Bytes for the rank that reads standard input.
    Input(#[serde(with = "bytes")] Vec<u8>),
    /// There are no more.
    EndOfInput,
    /// What do the processes of these ranks do?
    Look,
    /// All ranks have ended: deliver the rest of their output, and leave nothing behind.
    Finish,
}

/// Part of the tree of agents.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Branch {
    /// Number and name of each host, never empty.
    pub(crate) hosts: Vec<(u32, String)>,
    pub(crate) remote: Remote,
}

/// How agents are started and watched.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Remote {
    /// The remote-start command, with `{host}` and `{command}` in it or to be added.
    pub(crate) command: Vec<OsString>,
    /// `ucxrun`, on every host.
    pub(crate) program: OsString,
    /// The host that is the launcher's own, whose agent needs no remote-start command.
    pub(crate) direct: Option<u32>,
    /// Most agents that one launcher or agent starts.
    pub(crate) fan_out: u32,
    /// Silence for so long means that a host is lost.
    pub(crate) silence: Duration,
}

/// What an agent must know of a job.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Brief {
    pub(crate) secret: [u8; 32],
    pub(crate) job: [u8; 16],
    pub(crate) plan: Plan,
    pub(crate) surroundings: Surroundings,
    pub(crate) bind: Bind,
    /// The rank that reads standard input.
    pub(crate) stdin: Option<u32>,
    /// Whether anybody wants the ranks' output.
    pub(crate) output: bool,
    /// A network device that must be there.
    pub(crate) network: Option<String>,
}

/// An agent to its launcher.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum FromAgent {
    /// Ready for a job.
    Ready {
        /// Its host's own name.
        host: String,
        /// Network devices, with addresses where those are known.
        networks: Vec<String>,
        /// Processors that it may use.
        cores: u32,
    },
    /// This host cannot run its ranks.
    Cannot { kind: Failing, message: String },
    /// A rank runs as this process, on these processors if it is bound.
    Started {
        rank: u32,
        pid: u32,
        bound: Option<String>,
    },
    /// A rank has joined as this process.
    Joined { rank: u32, pid: u32 },
    /// A rank's message.
    Frame {
        rank: u32,
        #[serde(with = "bytes")]
        frame: Vec<u8>,
    },
    /// A rank's connection has come to its end.
    Closed(u32),
    /// A rank has done what it must not.
    Broke { rank: u32, what: String },
    /// A rank's process has ended.
    Exited { rank: u32, exit: Exit },
    /// What a rank has written.
    Output {
        rank: u32,
        stream: Stream,
        #[serde(with = "bytes")]
        bytes: Vec<u8>,
    },
    /// A rank's stream has come to its end.
    OutputEnded { rank: u32, stream: Stream },
    /// So many bytes of input have been taken.
    InputTaken(usize),
    /// The rank does not want more.
    InputClosed,
    /// A connection was turned down, or another event that is told to the curious.
    Notice(String),
    /// What a rank's process does.
    Doing { rank: u32, what: String },
    /// The host is gone, as its parent in the tree has found.
    Lost { reason: String },
    /// Nothing is left.
    Done,
}

/// [`ErrorKind`], as far as the exit code depends on it.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) enum Failing {
    NotFound,
    NotExecutable,
    Other,
}

impl From<ErrorKind> for Failing {
    fn from(kind: ErrorKind) -> Self {
        match kind {
            ErrorKind::NotFound => Self::NotFound,
            ErrorKind::NotExecutable => Self::NotExecutable,
            _ => Self::Other,
        }
    }
}
