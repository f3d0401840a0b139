//! What the hardware allows: a plain shared mapping, and a barrier of plain shared flags.

#![expect(unsafe_code, reason = "System V shared memory and raw pointers to it")]

use crate::loops::Memory;
use pgas::{Result, World};
use std::io;
use std::ptr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// A System V segment that all ranks have mapped: the same kind of memory that UCX takes.
#[derive(Debug)]
pub(crate) struct Segment {
    base: *mut u8,
    bytes: usize,
}

impl Segment {
    /// Collective. The memory is zero, and no page of it has been touched.
    pub(crate) fn create(world: &World, owner: usize, bytes: usize) -> Result<Self> {
        let mut id = -1;
        if world.rank() == owner {
            // SAFETY: makes a new segment, whatever the arguments.
            id = unsafe { libc::shmget(libc::IPC_PRIVATE, bytes, libc::IPC_CREAT | 0o600) };
            assert!(id >= 0, "shmget: {}", io::Error::last_os_error());
        }
        let id = world.broadcast(owner, id)?;
        // SAFETY: the kernel chooses a free place.
        let base = unsafe { libc::shmat(id, ptr::null(), 0) };
        assert!(
            base.addr() != usize::MAX,
            "shmat: {}",
            io::Error::last_os_error()
        );
        world.barrier()?;
        if world.rank() == owner {
            // SAFETY: the segment stays until the last process has let go of it.
            unsafe { libc::shmctl(id, libc::IPC_RMID, ptr::null_mut()) };
        }
        Ok(Self {
            base: base.cast(),
            bytes,
        })
    }

    pub(crate) fn words(&self) -> Plain {
        Plain {
            base: self.base.cast(),
            words: self.bytes / 8,
        }
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        // SAFETY: attached in `create`; `Plain` and `Flags` are used while it lives, in this bench.
        unsafe { libc::shmdt(self.base.cast_const().cast()) };
    }
}

/// Words of a [`Segment`], by plain loads and stores.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plain {
    base: *mut u64,
    words: usize,
}

impl Plain {
    #[inline]
    fn at(&self, index: usize) -> *mut u64 {
        debug_assert!(index < self.words);
        // SAFETY: the loops' indices are masked to the length.
        unsafe { self.base.add(index) }
    }
}

impl Memory for Plain {
    #[inline]
    fn get(&self, index: usize) -> Result<u64> {
        // SAFETY: mapped and aligned; volatile, as others may write.
        Ok(unsafe { self.at(index).read_volatile() })
    }

    #[inline]
    fn put(&self, index: usize, value: u64) -> Result<()> {
        // SAFETY: as above.
        unsafe { self.at(index).write_volatile(value) };
        Ok(())
    }

    #[inline]
    fn flush(&self) -> Result<()> {
        fence(Ordering::SeqCst);
        Ok(())
    }

    #[inline]
    fn fetch_add(&self, index: usize, value: u64) -> Result<u64> {
        // SAFETY: mapped and aligned.
        let word = unsafe { AtomicU64::from_ptr(self.at(index)) };
        Ok(word.fetch_add(value, Ordering::SeqCst))
    }

    #[inline]
    fn get_into(&self, start: usize, to: &mut [u64]) -> Result<()> {
        // SAFETY: both hold so many words, and `to` is private.
        unsafe { ptr::copy_nonoverlapping(self.at(start), to.as_mut_ptr(), to.len()) };
        Ok(())
    }

    #[inline]
    fn get_range(&self, start: usize, count: usize) -> Result<Vec<u64>> {
        let mut values = Vec::with_capacity(count);
        // SAFETY: both hold so many words.
        unsafe { ptr::copy_nonoverlapping(self.at(start), values.as_mut_ptr(), count) };
        // SAFETY: just written.
        unsafe { values.set_len(count) };
        Ok(values)
    }

    #[inline]
    fn put_range(&self, start: usize, from: &[u64]) -> Result<()> {
        // SAFETY: both hold so many words.
        unsafe { ptr::copy_nonoverlapping(from.as_ptr(), self.at(start), from.len()) };
        Ok(())
    }
}

/// A barrier of plain flags in shared memory: the last to come counts the generation up, the
/// others watch it, first spinning and then yielding.
#[derive(Debug)]
pub(crate) struct Flags<'a> {
    arrived: &'a AtomicU32,
    generation: &'a AtomicU32,
    ranks: u32,
    spins: u32,
}

/// Rounds of looking before the core is given away. More ranks than cores: none is best.
const SPINS: u32 = 1000;

impl<'a> Flags<'a> {
    pub(crate) fn new(segment: &'a Segment, ranks: usize) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let word = |index| {
            // SAFETY: mapped for 'a, aligned, and accessed as an atomic only.
            unsafe { AtomicU32::from_ptr(segment.words().at(index).cast()) }
        };
        Self {
            // Two cache lines.
            arrived: word(0),
            generation: word(16),
            ranks: ranks as u32,
            spins: if ranks > cores { 1 } else { SPINS },
        }
    }

    pub(crate) fn barrier(&self) {
        let generation = self.generation.load(Ordering::Relaxed);
        if self.arrived.fetch_add(1, Ordering::AcqRel) + 1 == self.ranks {
            self.arrived.store(0, Ordering::Relaxed);
            self.generation
                .store(generation.wrapping_add(1), Ordering::Release);
            return;
        }
        let mut spins = self.spins;
        while self.generation.load(Ordering::Acquire) == generation {
            if spins > 0 {
                spins -= 1;
            } else {
                std::thread::yield_now();
            }
        }
    }
}
