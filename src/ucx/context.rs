//! `Context`: one initialised UCX library, with the job it belongs to.

#![expect(unsafe_code, reason = "calls UCX")]

use super::status::check;
use super::worker::Worker;
use crate::error::{Error, ErrorKind, Result};
use crate::wait::{DEFAULT_TIMEOUT, Limits};
use std::ffi::CString;
use std::hash::{BuildHasher as _, RandomState};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, Once, PoisonError};
use ucx_sys as sys;

/// The version of the UCX library this process runs on: major, minor, release.
#[must_use]
#[doc(alias = "ucp_get_version")]
pub fn version() -> (u32, u32, u32) {
    ucx_sys::version()
}

/// An initialised UCX library. Cloning shares it; it is cleaned up when the last clone, worker,
/// endpoint, key and memory handle made from it is gone.
#[derive(Clone, Debug)]
pub struct Context(Arc<Inner>);

/// Invariant: `handle` came from `ucp_init_version` and is live until `drop`.
#[derive(Debug)]
struct Inner {
    handle: NonNull<sys::ucp_context>,
    job: u128,
    rank: u32,
    /// A random number, in the addresses of its workers and the keys to its memory: a key is only
    /// good on an endpoint to its owner.
    id: u64,
    /// [`FORKS`] when it was made.
    forks: u32,
    retired: Mutex<Vec<Retired>>,
}

/// Memory whose key has left the process: unmapped when the context goes, not before, since
/// a peer may still use the key.
#[derive(Debug)]
pub(super) struct Retired(pub(super) NonNull<sys::ucp_mem>);

// SAFETY: a ucp_mem_h may be used from any thread; Retired owns it.
unsafe impl Send for Retired {}

// SAFETY: UCX contexts are thread-safe when made with `mt_workers_shared`, which `build` sets.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

/// Settings for a [`Context`].
#[derive(Clone, Debug, Default)]
pub struct Builder {
    job: u128,
    rank: u32,
    config: Vec<(String, String)>,
}

impl Builder {
    /// The job's number: keys and addresses of another job are refused. Default 0.
    #[must_use]
    pub fn job(mut self, job: u128) -> Self {
        self.job = job;
        self
    }

    /// This process's rank, named in the keys it packs. Default 0.
    #[must_use]
    pub fn rank(mut self, rank: u32) -> Self {
        self.rank = rank;
        self
    }

    /// Sets a UCX option (`"TLS"` for `UCX_TLS`), unless the environment sets it.
    #[must_use]
    #[doc(alias = "ucp_config_modify")]
    pub fn default_option(mut self, name: &str, value: &str) -> Self {
        if std::env::var_os(format!("UCX_{name}")).is_none() {
            self.config.push((name.into(), value.into()));
        }
        self
    }

    /// Whether tcp is among the transports; UCX warns of options that no transport takes.
    fn may_use_tcp(&self) -> bool {
        let set = std::env::var("UCX_TLS").ok();
        let ours = self.config.iter().find(|(name, _)| name == "TLS");
        let list = set.as_ref().or(ours.map(|(_, value)| value));
        list.is_none_or(|list| {
            let named = list
                .trim_start_matches('^')
                .split(',')
                .any(|item| ["tcp", "all"].contains(&item.trim().trim_start_matches('\\')));
            named != list.starts_with('^')
        })
    }

    /// Initialises UCX.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] when the library is older than 1.12, when libucp and libucs
    /// come from different installations, or when `UCX_PROTO_ENABLE` asks for a protocol
    /// generation that breaks one-sided access; [`ErrorKind::Ucx`] when UCX refuses.
    #[doc(alias = "ucp_init")]
    pub fn build(mut self) -> Result<Context> {
        sys::check().map_err(|reason| Error::new(ErrorKind::Unsupported, reason))?;
        count_forks();
        let (major, minor, _) = version();
        refuse_proto_override(major, minor)?;

        // Atomics by the processor everywhere: those of a network device are not coherent with
        // atomics through mapped memory.
        self = self.default_option("ATOMIC_MODE", "cpu");
        let asked = std::env::var_os("UCX_TCP_PUT_ENABLE").is_some();
        if (major, minor) < NEW_PROTOCOLS && !asked && self.may_use_tcp() {
            // Puts over tcp as messages: the receiver of tcp's own puts crashes in 1.13 when
            // several small ones arrive together. Options of a transport go without its prefix.
            self.config.push(("PUT_ENABLE".into(), "n".into()));
        }
        let config = Config::read()?;
        for (name, value) in &self.config {
            config.modify(name, value)?;
        }
        let params = sys::ucp_params_t {
            field_mask: sys::UCP_PARAM_FIELD_FEATURES | sys::UCP_PARAM_FIELD_MT_WORKERS_SHARED,
            features: sys::UCP_FEATURE_RMA
                | sys::UCP_FEATURE_AMO32
                | sys::UCP_FEATURE_AMO64
                | sys::UCP_FEATURE_TAG
                | sys::UCP_FEATURE_WAKEUP,
            mt_workers_shared: 1,
            ..sys::ucp_params_t::ZEROED
        };
        let mut handle = ptr::null_mut();
        // SAFETY: params and config are valid for the call, handle is written on success.
        let status = unsafe {
            sys::ucp_init_version(
                sys::UCP_API_MAJOR,
                sys::UCP_API_MINOR,
                &raw const params,
                config.0.as_ptr(),
                &raw mut handle,
            )
        };
        check("ucp_init_version", status)?;
        let handle = NonNull::new(handle)
            .ok_or_else(|| Error::new(ErrorKind::Ucx, "ucp_init_version: no context"))?;
        Ok(Context(Arc::new(Inner {
            handle,
            job: self.job,
            rank: self.rank,
            id: RandomState::new().hash_one(std::process::id()),
            forks: FORKS.load(Ordering::Relaxed),
            retired: Mutex::default(),
        })))
    }
}

/// The first version whose default is the new generation of protocols.
const NEW_PROTOCOLS: (u32, u32) = (1, 16);

/// The two protocol generations of UCX differ in what is one-sided: 1.13 is right only with its
/// default (old), 1.22 only with its own (new).
fn refuse_proto_override(major: u32, minor: u32) -> Result<()> {
    let Ok(value) = std::env::var("UCX_PROTO_ENABLE") else {
        return Ok(());
    };
    let asked = matches!(
        value.to_lowercase().as_str(),
        "y" | "yes" | "1" | "on" | "true"
    );
    let default = (major, minor) >= NEW_PROTOCOLS;
    if asked == default {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::Unsupported,
        format!(
            "UCX_PROTO_ENABLE={value} is set: one-sided access on UCX {major}.{minor} needs its \
             default ({}); unset the variable",
            if default { "y" } else { "n" }
        ),
    ))
}

/// UCX's configuration, read from the environment. Invariant: live until `drop`.
struct Config(NonNull<sys::ucp_config_t>);

impl Config {
    fn read() -> Result<Self> {
        let mut config = ptr::null_mut();
        // SAFETY: null prefix and file are allowed; config is written on success.
        let status = unsafe { sys::ucp_config_read(ptr::null(), ptr::null(), &raw mut config) };
        check("ucp_config_read", status)?;
        NonNull::new(config)
            .map(Self)
            .ok_or_else(|| Error::new(ErrorKind::Ucx, "ucp_config_read: no configuration"))
    }

    fn modify(&self, name: &str, value: &str) -> Result<()> {
        let text = |text: &str| {
            CString::new(text).map_err(|_| {
                Error::new(
                    ErrorKind::InvalidArgument,
                    format!("UCX option {text:?} contains a NUL"),
                )
            })
        };
        let (c_name, c_value) = (text(name)?, text(value)?);
        // SAFETY: the configuration is live, both strings are NUL-terminated.
        let status =
            unsafe { sys::ucp_config_modify(self.0.as_ptr(), c_name.as_ptr(), c_value.as_ptr()) };
        check("ucp_config_modify", status)
            .map_err(|error| error.context(format!("UCX option {name}={value}")))
    }
}

impl Drop for Config {
    fn drop(&mut self) {
        // SAFETY: live, and released once.
        unsafe { sys::ucp_config_release(self.0.as_ptr()) };
    }
}

impl Context {
    /// Settings to start from.
    #[must_use]
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Makes a worker: a place where communication happens. Its waits end after 600 seconds; see
    /// [`Worker::set_timeout`].
    ///
    /// # Errors
    /// [`ErrorKind::Ucx`]; with little room in `/dev/shm` this is where it shows.
    pub fn worker(&self) -> Result<Worker> {
        let limits = Limits::default();
        limits.set_timeout(Some(DEFAULT_TIMEOUT));
        self.worker_within(&Arc::new(limits))
    }

    /// A worker whose waits end as `limits` say.
    pub(crate) fn worker_within(&self, limits: &Arc<Limits>) -> Result<Worker> {
        Worker::new(self, limits)
    }

    /// The job given to [`Builder::job`].
    #[must_use]
    pub fn job(&self) -> u128 {
        self.0.job
    }

    /// The rank given to [`Builder::rank`].
    #[must_use]
    pub fn rank(&self) -> u32 {
        self.0.rank
    }

    pub(super) fn id(&self) -> u64 {
        self.0.id
    }

    /// UCX's handle, valid while this context lives.
    #[must_use]
    pub fn as_raw(&self) -> sys::ucp_context_h {
        self.0.handle.as_ptr()
    }

    /// Whether this process was forked from the one that made the context. UCX objects belong
    /// to the parent then: nothing here may call UCX, not even to free them.
    pub(crate) fn is_forked(&self) -> bool {
        self.0.is_forked()
    }

    /// # Errors
    /// [`ErrorKind::Forked`].
    pub(crate) fn refuse_fork(&self) -> Result<()> {
        if self.is_forked() {
            return Err(forked());
        }
        Ok(())
    }

    /// Keeps `memory` mapped until the context goes.
    pub(super) fn retire(&self, memory: Retired) {
        self.0
            .retired
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(memory);
    }

    /// Unmaps memory now. Nobody may use it or its keys afterwards: callers have made sure.
    pub(super) fn unmap(&self, memory: NonNull<sys::ucp_mem>) -> Result<()> {
        // SAFETY: the handle is live and of this context: MemoryHandle owned it and gave it up.
        let status = unsafe { sys::ucp_mem_unmap(self.as_raw(), memory.as_ptr()) };
        check("ucp_mem_unmap", status)
    }
}

impl Inner {
    fn is_forked(&self) -> bool {
        FORKS.load(Ordering::Relaxed) != self.forks
    }
}

/// How many forks lie between the process that started and this one. Asking the kernel for the
/// process number instead would cost a system call for each operation.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// Makes every forked child count its fork.
fn count_forks() {
    extern "C" fn in_child() {
        FORKS.fetch_add(1, Ordering::Relaxed);
    }
    static REGISTER: Once = Once::new();
    REGISTER.call_once(|| {
        // SAFETY: the handler only adds to an atomic, which is allowed after fork. Should it not
        // be registered (no memory), forked children are not recognised; nothing worse.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    });
}

#[cold]
fn forked() -> Error {
    Error::new(
        ErrorKind::Forked,
        format!(
            "process {} was forked from a rank: only the rank itself may communicate",
            std::process::id()
        ),
    )
}

impl Drop for Inner {
    fn drop(&mut self) {
        if self.is_forked() {
            return; // Forked: these are the parent's.
        }
        let retired = std::mem::take(
            self.retired
                .get_mut()
                .unwrap_or_else(PoisonError::into_inner),
        );
        for memory in retired {
            // SAFETY: live, of this context, and nobody in this process uses it any more.
            unsafe { sys::ucp_mem_unmap(self.handle.as_ptr(), memory.0.as_ptr()) };
        }
        // SAFETY: live, and everything made from it held the Arc that is now gone.
        unsafe { sys::ucp_cleanup(self.handle.as_ptr()) };
    }
}
