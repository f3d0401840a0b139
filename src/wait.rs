//! Waiting: spin briefly, give the core away, then sleep; never past a deadline or a failure.

use crate::cores;
use crate::error::{Error, ErrorKind, Result};
use rustix::fs::Timespec;
use rustix::io;
use rustix::thread::futex;
use std::cell::RefCell;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};
use std::time::{Duration, Instant};

/// The time limit of a wait where nobody has set another.
pub(crate) const DEFAULT_TIMEOUT: Duration = Duration::from_secs(600);

/// `PGAS_SPIN`: looks at flags of ranks of the same node before the core is first given away.
static LOOKS: AtomicU32 = AtomicU32::new(NOT_SET);
const NOT_SET: u32 = u32::MAX;
/// If nobody says, where this rank has a core [of its own](cores::own), and where what is waited
/// for needs the same core.
const LOOKS_WITH_OWN_CORE: u32 = 500;
const LOOKS_WHEN_CROWDED: u32 = 1;
/// A `ucp_worker_progress` is worth so many looks. Few: also with a core for each rank, what is
/// waited for may need this one (a progress thread: with 2000 rounds a get from a rank that
/// computes took 310 µs, with 20 it takes 9).
const LOOKS_OF_PROGRESS: u32 = 25;
/// `PGAS_YIELD`: how many microseconds to yield before sleeping, in waits for ranks of the same
/// node. A sleep and wake-up costs some 50 µs, and where ranks share cores one that sleeps makes
/// others wait long enough to sleep, too: with 100 µs, 8 ranks on 2 cores fell into that again and
/// again, and took twice as long for a barrier.
static YIELD_FOR: AtomicU32 = AtomicU32::new(1000);
/// A part of that where the network is waited for.
const YIELD_FOR_NETWORK: u32 = 10;
/// In waits for ranks of the same node: so many times the core is given away before the clock and
/// the limits are looked at again.
const UNWATCHED: u32 = 7;
/// `PGAS_NAP`: milliseconds of the longest single sleep: how soon a sleeper notices a failure or
/// its deadline.
static NAP: AtomicU32 = AtomicU32::new(50);

/// `PGAS_NOTICE`: seconds after which a rank says whom it waits for; 0 for never.
static NOTICE: AtomicU32 = AtomicU32::new(10);

/// Takes what the user says of waits from the environment.
///
/// # Errors
/// [`ErrorKind::InvalidArgument`] if it is no number.
pub(crate) fn rules_from_env() -> Result<()> {
    for (name, rule) in [
        ("PGAS_SPIN", &LOOKS),
        ("PGAS_YIELD", &YIELD_FOR),
        ("PGAS_NAP", &NAP),
        ("PGAS_NOTICE", &NOTICE),
    ] {
        let Ok(text) = std::env::var(name) else {
            continue;
        };
        let number = text.trim().parse().map_err(|_| {
            let text = format!("{name} is {text:?}, not a number below 2^32");
            Error::new(ErrorKind::InvalidArgument, text)
        })?;
        rule.store(number, Ordering::Relaxed);
    }
    Ok(())
}

fn looks() -> u32 {
    match LOOKS.load(Ordering::Relaxed) {
        NOT_SET if cores::own() == 0 => LOOKS_WHEN_CROWDED,
        NOT_SET => LOOKS_WITH_OWN_CORE,
        looks => looks,
    }
}

/// The state of one wait: call [`Patience::pause`] each time the condition is still false.
pub(crate) struct Patience<'a> {
    spins: u32,
    since: Option<Instant>,
    /// When the time limit began to count, if not with this wait.
    began: Option<Instant>,
    /// How much longer than the limit.
    grace: Duration,
    yield_for: Duration,
    /// How often to yield before the clock is looked at again, and how often that is at most.
    unwatched: (u32, u32),
    /// Called once if it takes long.
    tell: Option<&'a dyn Fn(Duration)>,
}

impl<'a> Patience<'a> {
    pub(crate) fn new() -> Self {
        Self {
            spins: looks().div_ceil(LOOKS_OF_PROGRESS),
            since: None,
            began: None,
            grace: Duration::ZERO,
            yield_for: Duration::from_micros(u64::from(
                YIELD_FOR.load(Ordering::Relaxed) / YIELD_FOR_NETWORK,
            )),
            unwatched: (0, 0),
            tell: None,
        }
    }

    /// Calls `tell` once if the wait takes as long as `PGAS_NOTICE` says.
    pub(crate) fn telling(mut self, tell: &'a dyn Fn(Duration)) -> Self {
        self.tell = Some(tell);
        self
    }

    /// Of a wait for ranks of the same node, at whose flags a look costs a nanosecond or two, and
    /// who answer within some hundred: giving the core away would take longer.
    pub(crate) fn for_neighbours() -> Self {
        Self {
            spins: looks(),
            yield_for: Duration::from_micros(YIELD_FOR.load(Ordering::Relaxed).into()),
            unwatched: (0, UNWATCHED),
            ..Self::new()
        }
    }

    /// Of a wait whose time limit counts from `began` and ends `grace` later: for one of several
    /// waits, and for who waits for the word of somebody who waits himself.
    pub(crate) fn from(began: Instant, grace: Duration) -> Self {
        Self {
            began: Some(began),
            grace,
            ..Self::new()
        }
    }

    /// Spins or yields once. When it is time to sleep, returns for how long at most.
    ///
    /// # Errors
    /// The failure that `limits` reports, or [`ErrorKind::Timeout`] with no text: the caller
    /// knows what it waited for.
    pub(crate) fn pause(&mut self, limits: &Limits) -> Result<Option<Duration>> {
        if self.spins > 0 {
            self.spins -= 1;
            return Ok(None);
        }
        let (left, most) = &mut self.unwatched;
        if *left > 0 {
            *left -= 1;
            std::thread::yield_now();
            return Ok(None);
        }
        *left = *most;
        let since = *self.since.get_or_insert_with(Instant::now);
        limits.check()?;
        let waited = since.elapsed();
        if let Some(limit) = limits.timeout()
            && self.began.map_or(waited, |began| began.elapsed()) >= limit + self.grace
        {
            return Err(Error::new(
                ErrorKind::Timeout,
                format!("no answer for {limit:?}"),
            ));
        }
        if waited < self.yield_for {
            std::thread::yield_now();
            return Ok(None);
        }
        self.unwatched.0 = 0;
        let notice = Duration::from_secs(NOTICE.load(Ordering::Relaxed).into());
        if !notice.is_zero()
            && waited >= notice
            && let Some(tell) = self.tell.take()
        {
            tell(notice);
        }
        Ok(Some(Duration::from_millis(
            NAP.load(Ordering::Relaxed).into(),
        )))
    }
}

/// Whether time in waits is counted, and how much it was, in nanoseconds.
static COUNTED: AtomicBool = AtomicBool::new(false);
static WAITED: AtomicU64 = AtomicU64::new(0);

/// Counts the time of all waits that end from now on and are not over after some spinning.
pub(crate) fn count_waits() {
    COUNTED.store(true, Ordering::Relaxed);
}

/// How much that was.
pub(crate) fn waited() -> Duration {
    Duration::from_nanos(WAITED.load(Ordering::Relaxed))
}

impl Drop for Patience<'_> {
    fn drop(&mut self) {
        if let Some(since) = self.since
            && COUNTED.load(Ordering::Relaxed)
        {
            let nanos = since.elapsed().as_nanos();
            WAITED.fetch_add(u64::try_from(nanos).unwrap_or(0), Ordering::Relaxed);
        }
    }
}

/// In a job that goes on without ranks that fail, those whose failure ends a thread's waits. By their numbers in the world.
#[derive(Clone, Debug, Default)]
pub(crate) enum Concern {
    #[default]
    Nobody,
    Rank(usize),
    /// Of a team; None for all.
    Ranks(Option<Arc<[usize]>>),
}

impl Concern {
    fn has(&self, rank: usize) -> bool {
        match self {
            Self::Nobody => false,
            Self::Rank(one) => *one == rank,
            Self::Ranks(None) => true,
            Self::Ranks(Some(ranks)) => ranks.contains(&rank),
        }
    }
}

thread_local! {
    static CONCERN: RefCell<Concern> = const { RefCell::new(Concern::Nobody) };
}

/// A thread's concern, until it is dropped; then it is again what it was.
#[derive(Debug)]
#[must_use]
pub(crate) struct Concerned {
    before: Option<Concern>,
    /// Of one thread.
    _here: PhantomData<*const ()>,
}

impl Drop for Concerned {
    fn drop(&mut self) {
        if let Some(before) = self.before.take() {
            // Nobody waits in a thread that is ending.
            let _ = CONCERN.try_with(|concern| concern.replace(before));
        }
    }
}

/// What ends a wait early: a failure somewhere in the job, or too much time.
#[derive(Debug, Default)]
pub(crate) struct Limits {
    /// The job has failed, or it goes on and has lost a rank.
    alarmed: AtomicBool,
    closed: AtomicBool,
    /// Whether the job goes on without ranks that fail.
    goes_on: AtomicBool,
    /// Those that it has lost.
    lost: Mutex<Vec<(usize, Error)>>,
    failure: OnceLock<Error>,
    timeout: RwLock<Option<Duration>>,
    /// What is waited for, if anybody may ask.
    waiting: OnceLock<Mutex<Option<String>>>,
}

impl Limits {
    /// From now on somebody may ask for what is waited for.
    pub(crate) fn watch(&self) {
        // Set already is as good.
        let _ = self.waiting.set(Mutex::default());
    }

    /// Does `wait`, and says what that waits for, if anybody may ask.
    #[inline]
    pub(crate) fn waiting_for<R>(
        &self,
        what: impl FnOnce() -> String,
        wait: impl FnOnce() -> R,
    ) -> R {
        let say = |what: Option<String>| {
            if let Some(waiting) = self.waiting.get() {
                *waiting.lock().unwrap_or_else(PoisonError::into_inner) = what;
            }
        };
        if self.waiting.get().is_none() {
            return wait();
        }
        say(Some(what()));
        let done = wait();
        say(None);
        done
    }

    /// What is waited for in a collective; nothing if that is not known.
    pub(crate) fn waiting(&self) -> Option<String> {
        let waiting = self.waiting.get()?;
        waiting
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// The longest that one wait may take; `None` is for ever.
    pub(crate) fn set_timeout(&self, timeout: Option<Duration>) {
        *self.timeout.write().unwrap_or_else(PoisonError::into_inner) = timeout;
    }

    pub(crate) fn timeout(&self) -> Option<Duration> {
        *self.timeout.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes every wait from now on, and every one under way, end with `error`. The first wins.
    pub(crate) fn fail(&self, error: Error) {
        // A second failure changes nothing: the first is the one to report.
        let _ = self.failure.set(error);
        self.alarmed.store(true, Ordering::Release);
    }

    /// From now on ranks may be [lost](Limits::lose).
    pub(crate) fn go_on(&self) {
        self.goes_on.store(true, Ordering::Relaxed);
    }

    /// Makes every wait that is concerned with this rank of the world, from now on and under way, end with `error`.
    pub(crate) fn lose(&self, rank: usize, error: Error) {
        let mut lost = self.lost.lock().unwrap_or_else(PoisonError::into_inner);
        lost.push((rank, error));
        self.alarmed.store(true, Ordering::Release);
    }

    /// Whether the job goes on although it has lost ranks.
    pub(crate) fn goes_on_without_some(&self) -> bool {
        let lost = self.lost.lock().unwrap_or_else(PoisonError::into_inner);
        !lost.is_empty() && self.failure.get().is_none()
    }

    /// What this thread does until the result is dropped is concerned with those ranks. Costs nothing where the job ends
    /// with the first rank that fails.
    #[inline]
    pub(crate) fn concerned(&self, with: impl FnOnce() -> Concern) -> Concerned {
        let before = self
            .goes_on
            .load(Ordering::Relaxed)
            .then(|| CONCERN.try_with(|concern| concern.replace(with())).ok());
        Concerned {
            before: before.flatten(),
            _here: PhantomData,
        }
    }

    /// Notes that this rank's part in the job is over: what the launcher does now is no failure.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Release);
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// # Errors
    /// The failure given to [`Limits::fail`], or to [`Limits::lose`] for a rank that this thread is concerned with;
    /// [`ErrorKind::Closed`] after [`Limits::close`].
    #[inline]
    pub(crate) fn check(&self) -> Result<()> {
        if self.alarmed.load(Ordering::Acquire) {
            self.alarm()?;
        }
        if self.is_closed() {
            return Err(Error::new(ErrorKind::Closed, "the world has ended"));
        }
        Ok(())
    }

    #[cold]
    fn alarm(&self) -> Result<()> {
        if let Some(error) = self.failure.get() {
            return Err(error.clone());
        }
        let concern = CONCERN.try_with(|concern| concern.borrow().clone());
        let concern = concern.unwrap_or_default();
        let lost = self.lost.lock().unwrap_or_else(PoisonError::into_inner);
        let found = lost.iter().find(|(rank, _)| concern.has(*rank));
        found.map_or(Ok(()), |(_, error)| Err(error.clone()))
    }
}

/// How much of `nap` to sleep in a wait that is woken through memory: little while messages are under
/// way, which wake nobody there.
pub(crate) fn nap_beside(messages: bool, nap: Duration) -> Duration {
    const SHORT: Duration = Duration::from_millis(1);
    if messages { nap.min(SHORT) } else { nap }
}

/// Wakes all that [`sleep_on`] a word, in any process.
pub(crate) fn wake_all(word: &AtomicU32) {
    // Only fails for addresses that are not mapped.
    let _ = futex::wake(word, futex::Flags::empty(), i32::MAX as u32);
}

/// Sleeps until somebody wakes `word`, if it is still `seen`; for `nap` at most.
pub(crate) fn sleep_on(word: &AtomicU32, seen: u32, nap: Duration) {
    let timeout = Timespec::try_from(nap).ok();
    match futex::wait(word, futex::Flags::empty(), seen, timeout.as_ref()) {
        // Changed already, woken, timed out or interrupted: the caller looks again.
        Ok(()) | Err(io::Errno::AGAIN | io::Errno::TIMEDOUT | io::Errno::INTR) => {}
        Err(_) => std::thread::yield_now(),
    }
}
