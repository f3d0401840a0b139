//! What ranks tell each other through memory: signals, counters and a mutex. All are small arrays.

#![expect(unsafe_code, reason = "sleeps on words of shared memory")]

use crate::array::GlobalArray;
use crate::dist::Dist;
use crate::element::Element;
use crate::error::{Error, ErrorKind, Result};
use crate::wait::{Patience, sleep_on, wake_all};
use crate::world::{Checks, Core, Team};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering, fence};
use std::time::Duration;

/// Longest sleep of a waiter that nobody wakes: what another node does wakes nobody.
const NAP: Duration = Duration::from_millis(1);
/// The same where all that happens, happens on this node, and wakes.
const LONG_NAP: Duration = Duration::from_millis(10);

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
    /// For each signal its value and how many threads sleep on it.
    words: GlobalArray<u64, 2>,
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
        let words = GlobalArray::builder(world, [world.size(), 2 * count])
            .dist([Dist::Block, Dist::Whole])
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
        change: impl FnOnce([usize; 2]) -> Result<u64>,
    ) -> Result<u64> {
        self.check(rank, signal)?;
        // The data before the signal, on every transport.
        self.core.flush()?;
        let before = change([rank, 2 * signal])?;
        // On this node a sleeper must be woken; it counts itself before it looks. An atomic
        // operation, so that it is not seen before the one above is done.
        if let Some(word) = self.words.mapped([rank, 2 * signal])?
            && self.words.fetch_add([rank, 2 * signal + 1], 0)? != 0
        {
            // SAFETY: the word of a mapped element, aligned, accessed by atomics.
            wake_all(unsafe { AtomicU32::from_ptr(word.cast()) });
        }
        Ok(before)
    }

    /// The value of a signal of this rank.
    ///
    /// # Errors
    /// As [`Signals::add`].
    pub fn get(&self, signal: usize) -> Result<u64> {
        self.check(self.core.rank, signal)?;
        // An atomic operation: what was done before the signal is seen after it.
        self.words.fetch_add([self.core.rank, 2 * signal], 0)
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
        let Some(&first) = signals.first() else {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                "wait_any for no signals",
            ));
        };
        let rank = self.core.rank;
        let mut look = || -> Result<Option<(usize, u64)>> {
            for &signal in signals {
                // A plain look leaves the line with whoever raises the signal.
                let value = self.words.look([rank, 2 * signal])?;
                if ready(value) {
                    self.seen(signal)?;
                    return Ok(Some((signal, value)));
                }
            }
            Ok(None)
        };
        // A sleeper sleeps on one word; for several it looks again after a short while.
        let word = match signals.len() {
            1 => self.words.mapped([rank, 2 * first])?,
            _ => None,
        };
        self.core
            .wait_for(
                || match look() {
                    Ok(found) => found.map(Ok),
                    Err(error) => Some(Err(error)),
                },
                |nap, look| {
                    let Some(word) = word else {
                        std::thread::sleep(nap.min(NAP));
                        return Ok(None);
                    };
                    // SAFETY: the word of a mapped element, aligned, accessed by atomics.
                    let word = unsafe { AtomicU32::from_ptr(word.cast()) };
                    self.words.fetch_add([rank, 2 * first + 1], 1)?;
                    // The half of the signal that the kernel compares.
                    let seen = lower_half(self.get(first)?);
                    let found = look();
                    if found.is_none() {
                        sleep_on(word, seen, nap);
                    }
                    self.words.fetch_sub([rank, 2 * first + 1], 1)?;
                    Ok(found)
                },
            )
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
        fence(Ordering::SeqCst);
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

/// Where a processor has the lower half of a word first.
fn lower_half(value: u64) -> u32 {
    #[expect(clippy::cast_possible_truncation, reason = "one half")]
    let half = if cfg!(target_endian = "little") {
        value as u32
    } else {
        (value >> 32) as u32
    };
    half
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
    /// The next ticket, and the one whose turn it is.
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
        let words = GlobalArray::builder(world, 2)
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
        self.core
            .wait_for(
                || match self.words.fetch_add(1, 0) {
                    Ok(turn) => (turn == ticket).then_some(Ok(())),
                    Err(error) => Some(Err(error)),
                },
                |nap, _| {
                    std::thread::sleep(nap.min(NAP));
                    Ok(None)
                },
            )
            .map_err(|error| error.context("wait for a mutex"))??;
        Ok(GlobalMutexGuard {
            mutex: self,
            given_back: false,
        })
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
        self.mutex.words.fetch_add(1, 1).map(drop)
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
    /// read again and again.
    ///
    /// # Errors
    /// [`ErrorKind::Timeout`], [`ErrorKind::PeerFailed`]; else as [`GlobalArray::get`].
    pub fn wait_until(&self, index: usize, mut ready: impl FnMut(&T) -> bool) -> Result<T> {
        let look = || match self.look([index]) {
            Ok(value) => ready(&value).then_some(Ok(value)),
            Err(error) => Some(Err(error)),
        };
        let sleep = |nap: Duration, _: &mut dyn FnMut() -> Option<Result<T>>| {
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
        let (mut patience, longest) = match self.is_one_node() {
            true => (Patience::for_neighbours(), LONG_NAP),
            false => (Patience::new(), NAP),
        };
        loop {
            if let Some(value) = ready() {
                return Ok(value);
            }
            // What this rank has under way goes on, for which neighbours do not wait.
            if !(self.is_one_node() && patience.spins()) {
                self.progress()?;
            }
            if let Some(nap) = patience.pause(self.limits())?
                && let Some(value) = sleep(nap.min(longest), &mut ready)?
            {
                return Ok(value);
            }
        }
    }
}
