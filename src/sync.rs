//! What ranks tell each other through memory: signals, counters and a mutex. All are small arrays.

#![expect(unsafe_code, reason = "sleeps on words of shared memory")]

use crate::array::GlobalArray;
use crate::dist::Dist;
use crate::element::Element;
use crate::error::{Error, ErrorKind, Result};
use crate::wait::{Patience, sleep_on, wake_all};
use crate::world::{Checks, Core, Sleeper, Team};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering, compiler_fence, fence};
use std::time::Duration;

/// Longest sleep of a waiter whom perhaps nobody wakes: what comes from another node by tcp rings, by
/// RDMA it does not.
const NAP: Duration = Duration::from_millis(1);

/// Numbers that ranks raise at each other and wait for: a rank tells another that something is
/// there, or done.
///
/// Each rank has the same number of them, all 0 at first. Any rank may [`add`](Signals::add) to
/// and [`set`](Signals::set) any rank's; a rank waits for its own.
///
/// ```no_run
/// # fn f(world: &pgas::World, array: &pgas::GlobalArray<f64>) -> pgas::Result<()> {
/// use pgas::Signals;
/// let signals = Signals::new(world, 1)?;
/// let next = (world.rank() + 1) % world.size();
/// let start = array.range_of(next).start;
/// signals.put_signal(array, start, &[1.5; 10], next, 0)?;
/// signals.wait(0, |count| count >= 1)?; // what the rank before has put is there
/// # Ok(())
/// # }
/// ```
pub struct Signals {
    /// For each rank its [bell](Bell), and its signals.
    words: GlobalArray<u64>,
    count: usize,
    core: Arc<Core>,
}

impl Signals {
    /// `count` signals on each rank.
    ///
    /// Collective.
    ///
    /// # Errors
    /// As [`GlobalArray::new`].
    pub fn new(world: &Team, count: usize) -> Result<Self> {
        // Equal parts, so that each rank has its own.
        let words = GlobalArray::builder(
            world,
            world.size().saturating_mul(count.saturating_add(BELL)),
        )
        .checks(Checks::Collectives)
        .build()?;
        Ok(Self {
            words,
            count,
            core: world.core().clone(),
        })
    }

    /// Signals of each rank.
    #[must_use]
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Adds to a signal of `rank`; returns its value before. What this rank has put anywhere is in
    /// its place before the signal is. One-sided; complete when it returns.
    ///
    /// # Errors
    /// [`ErrorKind::OutOfBounds`] if there is no such rank or signal; else as [`GlobalArray::get`].
    pub fn add(&self, rank: usize, signal: usize, value: u64) -> Result<u64> {
        self.change(rank, signal, |at| self.words.fetch_add(at, value))
    }

    /// Sets a signal of `rank`; returns its value before. As [`Signals::add`].
    ///
    /// # Errors
    /// As [`Signals::add`].
    pub fn set(&self, rank: usize, signal: usize, value: u64) -> Result<u64> {
        self.change(rank, signal, |at| self.words.swap(at, value))
    }

    fn change(
        &self,
        rank: usize,
        signal: usize,
        change: impl FnOnce(usize) -> Result<u64>,
    ) -> Result<u64> {
        self.check(rank, signal)?;
        // The data before the signal, on every transport.
        self.core.flush()?;
        let before = change(self.at(rank, signal))?;
        self.bell(rank).ring(1)?;
        Ok(before)
    }

    /// The index of a signal's word.
    fn at(&self, rank: usize, signal: usize) -> usize {
        rank * (BELL + self.count) + BELL + signal
    }

    fn bell(&self, rank: usize) -> Bell<'_> {
        let start = rank * (BELL + self.count);
        Bell {
            words: &self.words,
            rung: start,
            sleepers: start + 1,
        }
    }

    /// The value of a signal of this rank.
    ///
    /// # Errors
    /// As [`Signals::add`].
    pub fn get(&self, signal: usize) -> Result<u64> {
        self.check(self.core.rank, signal)?;
        // An atomic operation: what was done before the signal is seen after it.
        self.words.fetch_add(self.at(self.core.rank, signal), 0)
    }

    /// Waits until `ready` holds for the value of a signal of this rank; returns that value. What
    /// the ranks that raised it had put before is there.
    ///
    /// # Errors
    /// [`ErrorKind::Timeout`], [`ErrorKind::PeerFailed`]; else as [`Signals::add`].
    pub fn wait(&self, signal: usize, ready: impl FnMut(u64) -> bool) -> Result<u64> {
        self.wait_any(&[signal], ready).map(|(_, value)| value)
    }

    /// Waits until `ready` holds for the value of one of these signals of this rank; returns the
    /// first that is found, and its value. As [`Signals::wait`].
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for no signals; else as [`Signals::wait`].
    pub fn wait_any(
        &self,
        signals: &[usize],
        mut ready: impl FnMut(u64) -> bool,
    ) -> Result<(usize, u64)> {
        if signals.is_empty() {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                "wait_any for no signals",
            ));
        }
        for &signal in signals {
            self.check(self.core.rank, signal)?;
        }
        let rank = self.core.rank;
        let mut look = || -> Result<Option<(usize, u64)>> {
            for &signal in signals {
                // A plain look leaves the line with whoever raises the signal.
                let value = self.words.look([self.at(rank, signal)])?;
                if ready(value) {
                    self.seen(signal)?;
                    return Ok(Some((signal, value)));
                }
            }
            Ok(None)
        };
        let (bell, mut sleeper) = (self.bell(rank), None);
        let sleep = |nap: Duration, look: &mut dyn FnMut() -> Option<Result<(usize, u64)>>| {
            bell.sleep(&mut sleeper, nap, look)
        };
        self.core
            .wait_for(|| look().transpose(), sleep)
            .map_err(|error| self.late(error, signals))?
    }

    /// Writes `values` to the elements of `array` from index `start` on, and adds 1 to a signal of
    /// `rank` when they are in their place, on every transport. Nothing to write is no reason not to
    /// signal. One-sided; complete when it returns.
    ///
    /// # Errors
    /// As [`GlobalArray::put_range`] and [`Signals::add`].
    #[track_caller]
    pub fn put_signal<T: Element>(
        &self,
        array: &GlobalArray<T>,
        start: usize,
        values: &[T],
        rank: usize,
        signal: usize,
    ) -> Result<()> {
        array.put_range(start, values)?;
        self.add(rank, signal, 1).map(drop)
    }

    /// What was done before this rank's signal was raised is seen from now on.
    fn seen(&self, signal: usize) -> Result<()> {
        fence(Ordering::Acquire);
        if self.core.races().is_some() {
            self.get(signal)?;
        }
        Ok(())
    }

    fn check(&self, rank: usize, signal: usize) -> Result<()> {
        if rank < self.core.size && signal < self.count {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::OutOfBounds,
            format!(
                "signal {signal} of rank {rank}: there are {} on each of {} ranks",
                self.count, self.core.size
            ),
        ))
    }

    #[cold]
    fn late(&self, error: Error, signals: &[usize]) -> Error {
        error.context(format!(
            "wait for signal {signals:?} of rank {}",
            self.core.rank
        ))
    }
}

/// Two words of a rank's memory by which others of its node wake its sleepers, or those of all.
struct Bell<'a> {
    words: &'a GlobalArray<u64>,
    /// Changes when there is something to see.
    rung: usize,
    /// How many threads sleep.
    sleepers: usize,
}

/// Words before a rank's signals: a cache line, as who raises a signal looks at the bell, and should
/// not wait for a line that others look at.
const BELL: usize = 8;

impl<'a> Bell<'a> {
    /// After something has changed: adds `change` to the word and wakes who sleeps on it, if
    /// anybody does. Nobody is woken on another node.
    fn ring(&self, change: u64) -> Result<()> {
        let Some(word) = self.words.mapped([self.rung])? else {
            return Ok(());
        };
        // A sleeper counts itself before it looks. The look here is not before the change that is
        // to be seen.
        fence_after_atomic();
        if self.words.look([self.sleepers])? != 0 {
            self.words.fetch_add(self.rung, change)?;
            // SAFETY: the word of a mapped element, aligned, accessed by atomics.
            wake_all(unsafe { AtomicU32::from_ptr(word.cast()) });
        }
        Ok(())
    }

    /// Sleeps until somebody rings, for `nap` at most, unless `look` finds something first.
    /// `sleeper` is kept for the next sleep of the same wait.
    fn sleep<R>(
        &self,
        sleeper: &mut Option<Sleeper<'a>>,
        nap: Duration,
        look: &mut dyn FnMut() -> Option<R>,
    ) -> Result<Option<R>> {
        let Some(word) = self.words.mapped([self.rung])? else {
            std::thread::sleep(nap.min(NAP));
            return Ok(None);
        };
        if !self.words.core_of().is_one_node() {
            // What comes from other nodes rings for elements only: whoever rings this one writes its
            // word, so it is one.
            if sleeper.is_none() {
                *sleeper = self.words.sleeper([self.rung])?;
            }
            if let Some(sleeper) = sleeper {
                self.words.fetch_add(self.sleepers, 1)?;
                fence_after_atomic();
                let found = sleeper.sleep(nap, look);
                self.words.fetch_sub(self.sleepers, 1)?;
                return Ok(found);
            }
        }
        // SAFETY: the word of a mapped element, aligned, accessed by atomics.
        let word = unsafe { AtomicU32::from_ptr(word.cast()) };
        self.words.fetch_add(self.sleepers, 1)?;
        fence_after_atomic();
        // The half that the kernel compares.
        let seen = lower_half(self.words.fetch_add(self.rung, 0)?);
        let found = look();
        if found.is_none() {
            sleep_on(word, seen, nap);
        }
        self.words.fetch_sub(self.sleepers, 1)?;
        Ok(found)
    }
}

/// What this thread does from now on is not done before its last atomic operation.
fn fence_after_atomic() {
    if cfg!(target_arch = "x86_64") {
        // Such an operation is a fence there.
        compiler_fence(Ordering::SeqCst);
    } else {
        fence(Ordering::SeqCst);
    }
}

/// What a processor has first of a word, as 32 bits.
fn lower_half(value: u64) -> u32 {
    let bytes = value.to_ne_bytes();
    u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}

impl fmt::Debug for Signals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Signals")
            .field("count", &self.count)
            .finish_non_exhaustive()
    }
}

/// A number that all ranks draw from: each drawn once, for dividing work among ranks as they
/// come.
///
/// ```no_run
/// # fn f(world: &pgas::World) -> pgas::Result<()> {
/// let counter = pgas::Counter::new(world)?;
/// for chunk in counter.chunks(1_000_000, 1_000) {
///     for job in chunk? {
///         // Nobody else has this one.
///         # let _ = job;
///     }
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Counter {
    word: GlobalArray<u64>,
}

impl Counter {
    /// A counter at 0.
    ///
    /// Collective.
    ///
    /// # Errors
    /// As [`GlobalArray::new`].
    pub fn new(world: &Team) -> Result<Self> {
        Ok(Self {
            word: GlobalArray::builder(world, 1)
                .checks(Checks::Collectives)
                .build()?,
        })
    }

    /// Draws `count` numbers: those from the one returned on. One-sided.
    ///
    /// # Errors
    /// As [`GlobalArray::get`].
    pub fn next(&self, count: u64) -> Result<u64> {
        self.word.fetch_add(0, count)
    }

    /// Chunks of `0..total`, of `size` each but the last, as long as there are any: each goes to one
    /// rank, to whoever asks first. One-sided. For another round all ranks must
    /// [`reset`](Counter::reset).
    ///
    /// # Panics
    /// If `size` is 0.
    pub fn chunks(&self, total: u64, size: u64) -> impl Iterator<Item = Result<Range<u64>>> {
        assert!(size > 0, "chunks of 0");
        let mut done = false;
        std::iter::from_fn(move || {
            if done {
                return None;
            }
            // Never more than there is, so that the counter does not come round.
            let size = size.min(total.max(1));
            match self.next(size) {
                Ok(start) if start < total => {
                    Some(Ok(start..total.min(start.saturating_add(size))))
                }
                Ok(_) => {
                    done = true;
                    None
                }
                Err(error) => {
                    done = true;
                    Some(Err(error))
                }
            }
        })
    }

    /// Sets it to 0 again. Collective: a [barrier](Team::barrier) before and after.
    ///
    /// # Errors
    /// As [`GlobalArray::local`].
    pub fn reset(&mut self) -> Result<()> {
        let mut view = self.word.local()?;
        view.fill(0);
        view.close()
    }
}

/// A mutex of all ranks: one thread of one rank at a time has it, in the order in which they asked
/// for it.
///
/// A rank that ends without giving it back ends the job, as it does in any case.
pub struct GlobalMutex {
    /// The next ticket, the one whose turn it is, and after a [bell's](BELL) words how many threads
    /// sleep until that changes.
    words: GlobalArray<u64>,
    core: Arc<Core>,
}

impl GlobalMutex {
    /// A mutex that nobody has.
    ///
    /// Collective.
    ///
    /// # Errors
    /// As [`GlobalArray::new`].
    pub fn new(world: &Team) -> Result<Self> {
        let words = GlobalArray::builder(world, BELL + 1)
            .dist([Dist::Whole])
            .checks(Checks::Collectives)
            .build()?;
        Ok(Self {
            words,
            core: world.core().clone(),
        })
    }

    /// Waits for its turn. What the one before did to arrays is seen by whoever has the mutex
    /// next: giving it back [flushes](Team::flush).
    ///
    /// # Errors
    /// [`ErrorKind::Timeout`], after which nobody gets the mutex any more;
    /// [`ErrorKind::PeerFailed`]; else as [`GlobalArray::get`].
    pub fn lock(&self) -> Result<GlobalMutexGuard<'_>> {
        let ticket = self.words.fetch_add(0, 1)?;
        let look = || -> Result<Option<()>> {
            // A plain look leaves the line with whoever has the mutex, and rings no bell.
            if self.words.look([1])? != ticket {
                return Ok(None);
            }
            // An atomic operation: what was done before the mutex was given back is seen after it.
            Ok((self.words.fetch_add(1, 0)? == ticket).then_some(()))
        };
        let (turn, mut sleeper) = (self.turn(), None);
        let sleep = |nap: Duration, look: &mut dyn FnMut() -> Option<Result<()>>| {
            turn.sleep(&mut sleeper, nap, look)
        };
        self.core
            .wait_for(|| look().transpose(), sleep)
            .map_err(|error| error.context("wait for a mutex"))??;
        Ok(GlobalMutexGuard {
            mutex: self,
            given_back: false,
        })
    }
}

impl GlobalMutex {
    fn turn(&self) -> Bell<'_> {
        Bell {
            words: &self.words,
            rung: 1,
            sleepers: BELL,
        }
    }
}

impl fmt::Debug for GlobalMutex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GlobalMutex").finish_non_exhaustive()
    }
}

/// The turn of whoever has a [`GlobalMutex`]. Gives it back when dropped.
#[derive(Debug)]
#[must_use = "the mutex is given back at once"]
pub struct GlobalMutexGuard<'a> {
    mutex: &'a GlobalMutex,
    given_back: bool,
}

impl GlobalMutexGuard<'_> {
    /// Gives the mutex back; what was put before is in its place.
    ///
    /// # Errors
    /// As [`Team::flush`]: the mutex is then not given back, as what it protects may not be in its
    /// place; others who wait for it get [`ErrorKind::Timeout`].
    pub fn unlock(mut self) -> Result<()> {
        self.give_back()
    }

    fn give_back(&mut self) -> Result<()> {
        self.given_back = true;
        self.mutex.core.flush()?;
        self.mutex.words.fetch_add(1, 1)?;
        self.mutex.turn().ring(0)
    }
}

impl Drop for GlobalMutexGuard<'_> {
    fn drop(&mut self) {
        if !self.given_back {
            // The next one waits until its time is up, or hears why.
            let _ = self.give_back();
        }
    }
}

impl<T: Element> GlobalArray<T> {
    /// Waits until `ready` holds for the element at `index`; returns it. One-sided: the element is
    /// read again when it is written by a rank of this node, and each millisecond if there are
    /// other nodes.
    ///
    /// # Errors
    /// [`ErrorKind::Timeout`], [`ErrorKind::PeerFailed`]; else as [`GlobalArray::get`].
    pub fn wait_until(&self, index: usize, mut ready: impl FnMut(&T) -> bool) -> Result<T> {
        let look = || match self.look([index]) {
            Ok(value) => ready(&value).then_some(Ok(value)),
            Err(error) => Some(Err(error)),
        };
        // From the first sleep on writers know of this thread.
        let mut sleeper = None;
        let sleep = |nap: Duration, look: &mut dyn FnMut() -> Option<Result<T>>| {
            if sleeper.is_none() {
                sleeper = self.sleeper([index])?;
            }
            if let Some(sleeper) = &sleeper {
                return Ok(sleeper.sleep(nap, look));
            }
            std::thread::sleep(nap.min(NAP));
            Ok(None)
        };
        let value = self
            .core_of()
            .wait_for(look, sleep)
            .map_err(|error| error.context(format!("wait_until of index {index}")))??;
        // What was written before the element was, is seen after it.
        fence(Ordering::SeqCst);
        if let Some(races) = self.core_of().races() {
            // Who wrote it is not known for sure.
            races.hear_all(self.core_of())?;
        }
        Ok(value)
    }
}

impl Core {
    /// Waits until `ready` gives something: spins, yields, then calls `sleep` with the longest
    /// time to sleep and a way to look once more.
    fn wait_for<R>(
        &self,
        mut ready: impl FnMut() -> Option<R>,
        mut sleep: impl FnMut(Duration, &mut dyn FnMut() -> Option<R>) -> Result<Option<R>>,
    ) -> Result<R> {
        let _concerned = self.concerned_with_team();
        // Where all that happens, happens on this node, it rings.
        let alone = self.is_one_node();
        let mut patience = match alone {
            true => Patience::for_neighbours(),
            false => Patience::new(),
        };
        loop {
            if let Some(value) = ready() {
                return Ok(value);
            }
            let nap = patience.pause(self.limits())?;
            // What this rank has under way goes on.
            let helps = self.help_messages()?;
            if !alone && !helps {
                self.progress()?;
            }
            let Some(nap) = nap else {
                continue;
            };
            let nap = if alone && !helps { nap } else { nap.min(NAP) };
            if let Some(value) = sleep(nap, &mut ready)? {
                return Ok(value);
            }
        }
    }
}
