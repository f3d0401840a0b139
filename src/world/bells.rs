//! Bells for those who sleep until an element changes ([`GlobalArray::wait_until`]), in memory that
//! the ranks of a node share.
//!
//! Whoever writes an element must not pay for sleepers that do not exist, so it only looks at a
//! word, without a fence; whoever goes to sleep pays for both. With the word `asleep` and an
//! element `x`:
//!
//! ```text
//! writer                          sleeper
//!   x = new                         asleep += 1
//!   (no instruction)                membarrier
//!   is asleep 0? then no bell       is x new? then no sleep
//! ```
//!
//! `membarrier` makes each thread of a registered process execute a full fence somewhere between
//! its call and its return. If a writer's fence comes after its look, its store comes before the
//! fence as well, and the sleeper finds it. If it comes before its look, that look comes after
//! the sleeper's addition, and the writer rings. The compiler must keep store and look in their
//! order, and does so for [`compiler_fence`].
//!
//! A writer that finds somebody asleep orders the rest by a fence of its own: a sleeper counts
//! itself at its bell before it looks at `x`, and the kernel does not let it sleep if the bell was
//! rung since it looked.
//!
//! [`GlobalArray::wait_until`]: crate::GlobalArray::wait_until

#![expect(unsafe_code, reason = "words of shared memory")]

use crate::wait::{sleep_on, wake_all};
use rustix::thread::{MembarrierCommand, membarrier};
use std::ptr::NonNull;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering, compiler_fence, fence};
use std::time::Duration;

/// Words that count sleepers. An array has one of them, so that writers to most others find nobody.
const WORDS: usize = 16;
/// An element has one of so many bells, its neighbour the next.
const BELLS: usize = 64;

/// What a node's ranks share. Zero when made, and only accessed through its atomics.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Bells {
    /// How many threads sleep, by array. Written by sleepers only, so that each processor may have
    /// the line.
    asleep: [AtomicU32; WORDS],
    bells: [Bell; BELLS],
    /// Whether `membarrier` does not reach a rank: nobody may rely on being woken.
    deaf: AtomicU32,
}

/// A word to sleep on. Zero when made.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Bell {
    sleepers: AtomicU32,
    /// Changes when it is rung.
    rung: AtomicU32,
}

/// Elements of a rank's memory of an array.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Elements {
    /// The array's number.
    pub(crate) array: u64,
    /// In the array's team.
    pub(crate) rank: usize,
    /// The first one's place in the rank's memory.
    pub(crate) offset: usize,
    pub(crate) count: usize,
}

impl Elements {
    /// The number of the first one's bell; those after it have the next ones.
    fn bell(&self) -> usize {
        let start = spread(self.array ^ (self.rank as u64) << 20);
        self.offset.wrapping_add(start)
    }
}

/// Far from each other for numbers that follow each other.
fn spread(number: u64) -> usize {
    let product = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    usize::try_from(product >> 40).unwrap_or(0)
}

impl Bells {
    /// Of a rank that shares no memory with others: for its own threads.
    pub(super) fn of_this_process() -> &'static Self {
        static BELLS_HERE: Bells = Bells {
            asleep: [const { AtomicU32::new(0) }; WORDS],
            bells: [const {
                Bell {
                    sleepers: AtomicU32::new(0),
                    rung: AtomicU32::new(0),
                }
            }; BELLS],
            deaf: AtomicU32::new(0),
        };
        BELLS_HERE.join();
        &BELLS_HERE
    }

    /// Lets `membarrier` reach this process. To be called by each rank before anybody sleeps.
    pub(super) fn join(&self) {
        static REGISTERED: OnceLock<bool> = OnceLock::new();
        let register = || membarrier(MembarrierCommand::RegisterGlobalExpedited).is_ok();
        if !REGISTERED.get_or_init(register) {
            self.deaf.store(1, Ordering::SeqCst);
        }
    }

    /// What writers to an array look at.
    ///
    /// # Safety
    /// The bells stay where they are as long as it is used.
    pub(crate) unsafe fn asleep(&self, array: u64) -> Asleep {
        Asleep(NonNull::from(self.word(array)))
    }

    /// As if `membarrier` did not exist.
    #[cfg(test)]
    pub(crate) fn deafen(&self) {
        self.deaf.store(1, Ordering::SeqCst);
    }

    fn word(&self, array: u64) -> &AtomicU32 {
        &self.asleep[spread(array) % WORDS]
    }

    /// Wakes who sleeps until one of these elements changes. They have been written.
    pub(crate) fn ring(&self, elements: Elements) {
        fence(Ordering::SeqCst);
        let first = elements.bell();
        for k in 0..elements.count.min(BELLS) {
            self.bells[first.wrapping_add(k) % BELLS].ring();
        }
    }

    /// Wakes all who sleep, if there are any: something has been written by this thread.
    pub(super) fn ring_all(&self) {
        fence(Ordering::SeqCst);
        let asleep = |word: &AtomicU32| word.load(Ordering::Relaxed) != 0;
        if self.asleep.iter().any(asleep) {
            self.bells.iter().for_each(Bell::ring);
        }
    }

    /// For a thread that is about to sleep until an element changes; None if nobody would wake it.
    pub(crate) fn sleeper(&self, element: Elements) -> Option<Sleeper<'_>> {
        if self.deaf.load(Ordering::SeqCst) != 0 {
            return None;
        }
        let sleeper = Sleeper {
            asleep: self.word(element.array),
            bell: &self.bells[element.bell() % BELLS],
        };
        // Taken back when it is dropped.
        sleeper.asleep.fetch_add(1, Ordering::SeqCst);
        sleeper.bell.sleepers.fetch_add(1, Ordering::SeqCst);
        let done = membarrier(MembarrierCommand::GlobalExpedited);
        fence(Ordering::SeqCst);
        done.is_ok().then_some(sleeper)
    }
}

impl Bell {
    /// Whether somebody sleeps, or is about to. After what they wait for: a store that is
    /// [`SeqCst`](Ordering::SeqCst).
    pub(super) fn is_wanted(&self) -> bool {
        self.sleepers.load(Ordering::SeqCst) != 0
    }

    pub(super) fn ring(&self) {
        if self.is_wanted() {
            self.rung.fetch_add(1, Ordering::SeqCst);
            wake_all(&self.rung);
        }
    }

    /// Sleeps until it is rung, for `nap` at most, if there is still something to wait for. What
    /// `still` looks at are loads that are [`SeqCst`](Ordering::SeqCst).
    pub(super) fn sleep(&self, nap: Duration, still: impl FnOnce() -> bool) {
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        let seen = self.rung.load(Ordering::SeqCst);
        if still() {
            sleep_on(&self.rung, seen, nap);
        }
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
    }
}

/// How many threads sleep until an element of an array changes, or of another with the same word.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asleep(NonNull<AtomicU32>);

// SAFETY: an atomic in shared memory.
unsafe impl Send for Asleep {}
// SAFETY: as above.
unsafe impl Sync for Asleep {}

impl Asleep {
    /// Whether there are any, after what this thread has stored to elements before.
    #[inline(always)]
    pub(crate) fn any(&self) -> bool {
        // No instruction: see the top of this file.
        compiler_fence(Ordering::SeqCst);
        // SAFETY: whoever made this keeps the bells.
        unsafe { self.0.as_ref() }.load(Ordering::Relaxed) != 0
    }
}

/// A thread that sleeps until an element changes, or looks whether it has: writers ring.
#[derive(Debug)]
pub(crate) struct Sleeper<'a> {
    asleep: &'a AtomicU32,
    bell: &'a Bell,
}

impl Sleeper<'_> {
    /// Sleeps until the element is written, for `nap` at most, unless `look` finds something.
    pub(crate) fn sleep<R>(&self, nap: Duration, look: &mut dyn FnMut() -> Option<R>) -> Option<R> {
        let seen = self.bell.rung.load(Ordering::SeqCst);
        let found = look();
        if found.is_none() {
            sleep_on(&self.bell.rung, seen, nap);
        }
        found
    }
}

impl Drop for Sleeper<'_> {
    fn drop(&mut self) {
        self.bell.sleepers.fetch_sub(1, Ordering::SeqCst);
        self.asleep.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::hint::spin_loop;
    use std::sync::atomic::AtomicBool;
    use std::time::Instant;

    /// An element, alone in its cache line.
    #[repr(align(128))]
    struct Alone(AtomicU32);

    /// A writer and a sleeper that come at the same time never miss each other. Without
    /// `membarrier` they do, once in about a hundred thousand rounds.
    #[test]
    fn one_of_two_sees_the_other() {
        let bells = Bells::of_this_process();
        let element = Elements {
            array: 77,
            rank: 0,
            offset: 0,
            count: 1,
        };
        // SAFETY: those of this process stay.
        let asleep = unsafe { bells.asleep(element.array) };
        // What is written before the element keeps a processor from storing it at once.
        let before = [const { Alone(AtomicU32::new(0)) }; 16];
        let [x, come, gone, rung] = [const { Alone(AtomicU32::new(0)) }; 4];
        let stop = AtomicBool::new(false);
        let meet = |others: &AtomicU32, round| {
            while others.load(Ordering::Acquire) != round && !stop.load(Ordering::Relaxed) {
                spin_loop();
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 1.. {
                    meet(&come.0, round);
                    if stop.load(Ordering::Relaxed) {
                        return;
                    }
                    (0..round % 64).for_each(|_| spin_loop());
                    for word in &before {
                        word.0.store(round, Ordering::Relaxed);
                    }
                    x.0.store(round, Ordering::Relaxed);
                    rung.0.store(u32::from(asleep.any()), Ordering::Relaxed);
                    gone.0.store(round, Ordering::Release);
                }
            });
            let begin = Instant::now();
            let mut missed = 0;
            let mut rounds = 0;
            while begin.elapsed() < Duration::from_secs(2) {
                rounds += 1;
                come.0.store(rounds, Ordering::Release);
                (0..rounds / 64 % 64).for_each(|_| spin_loop());
                let sleeper = bells.sleeper(element).unwrap();
                let found = x.0.load(Ordering::Relaxed) == rounds;
                meet(&gone.0, rounds);
                for word in &before {
                    word.0.store(0, Ordering::Relaxed);
                }
                drop(sleeper);
                missed += u32::from(!found && rung.0.load(Ordering::Relaxed) == 0);
            }
            stop.store(true, Ordering::Relaxed);
            assert_eq!(missed, 0, "of {rounds} rounds");
        });
    }

    /// As many as the loop of [`Bells::ring`] takes, and each only for its own elements.
    #[test]
    fn who_sleeps_at_an_element_hears_of_it() {
        let bells = Bells::of_this_process();
        let at = |offset, count| Elements {
            array: 5,
            rank: 3,
            offset,
            count,
        };
        let rung = |sleeper: &Sleeper<'_>| sleeper.bell.rung.load(Ordering::SeqCst);
        // SAFETY: those of this process stay.
        let asleep = unsafe { bells.asleep(5) };
        let sleeper = bells.sleeper(at(1000, 1)).unwrap();
        assert!(asleep.any());
        for (elements, rings) in [
            (at(1000, 1), 1),
            (at(999, 1), 0),
            (at(1001, 63), 0),
            (at(1001, 64), 1),
            (at(990, 11), 1),
            (at(990, 10), 0),
            (at(990, 0), 0),
            (at(0, 1 << 40), 1),
        ] {
            let before = rung(&sleeper);
            bells.ring(elements);
            assert_eq!(rung(&sleeper) - before, rings, "{elements:?}");
        }
        let before = rung(&sleeper);
        bells.ring_all();
        assert_eq!(rung(&sleeper) - before, 1);
        drop(sleeper);
        bells.ring(at(1000, 1));
        bells.ring_all();
        let sleeper = bells.sleeper(at(1000, 1)).unwrap();
        assert_eq!(rung(&sleeper) - before, 1, "nobody was there");
    }
}
