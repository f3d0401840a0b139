//! Straight from one process's memory to another's, by the kernel: `process_vm_readv` and
//! `process_vm_writev`.
//!
//! Both ranks of a large message copy at the same time, the receiver from its beginning on and the
//! sender from its end: [`Claims`] say who copies what. Each chunk is copied once.
//!
//! The sender may read its own buffer for as long as its call lasts, and the receiver lends its
//! own for as long as its call lasts. That a receiver reads from a sender that has given up does
//! no harm: it finds out afterwards. A sender that writes to a receiver that has given up would: so
//! a receiver takes its offer back, and does not return before the sender has seen that or has
//! ended.

#![expect(unsafe_code, reason = "system calls on another process's memory")]

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::Timespec;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde::{Deserialize, Serialize};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of a process, as another may address them.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Place {
    pub(super) process: i32,
    /// Where in that process a number lies that no other has there, and the number.
    pub(super) proof_at: u64,
    pub(super) proof: u64,
    pub(super) bytes_at: u64,
}

impl Place {
    /// Of bytes of this process.
    pub(super) fn of(bytes: *const u8) -> Self {
        static PROOF: OnceLock<u64> = OnceLock::new();
        let proof = PROOF.get_or_init(|| {
            let mut number = [0; 8];
            // Without, it is only a number that is hard to find by chance.
            let _ = rustix::rand::getrandom(&mut number, rustix::rand::GetRandomFlags::empty());
            u64::from_le_bytes(number) | 1
        });
        Self {
            process: rustix::process::getpid().as_raw_nonzero().get(),
            proof_at: std::ptr::from_ref(proof).expose_provenance() as u64,
            proof: *proof,
            bytes_at: bytes.expose_provenance() as u64,
        }
    }
}

/// Another process of this machine, whose memory this one may read and write.
#[derive(Debug)]
pub(super) struct Peer {
    process: i32,
    /// Readable when all of its threads have ended.
    end: OwnedFd,
}

impl Peer {
    /// None if the system does not allow it, or if it is another process than the one that says
    /// so: one of another process name space.
    pub(super) fn meet(place: &Place) -> Option<Self> {
        let end = pidfd_open(Pid::from_raw(place.process)?, PidfdFlags::empty()).ok()?;
        let peer = Self {
            process: place.process,
            end,
        };
        let mut proof = [0; 8];
        // SAFETY: a buffer of so many bytes.
        unsafe { peer.read(place.proof_at, proof.as_mut_ptr(), proof.len()) }.ok()?;
        (u64::from_ne_bytes(proof) == place.proof).then_some(peer)
    }

    /// Whether it has ended, so that it reads and writes nothing any more.
    pub(super) fn has_ended(&self) -> bool {
        let mut end = [PollFd::new(&self.end, PollFlags::IN)];
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        poll(&mut end, Some(&now)).is_ok_and(|ready| ready > 0)
    }

    /// # Safety
    /// `to` is writable for `len` bytes.
    pub(super) unsafe fn read(&self, from: u64, to: *mut u8, len: usize) -> io::Result<()> {
        self.copy(from, to, len, libc::process_vm_readv)
    }

    /// # Safety
    /// The process has lent so many bytes at `to` for this.
    pub(super) unsafe fn write(&self, to: u64, from: &[u8]) -> io::Result<()> {
        let here = from.as_ptr().cast_mut();
        self.copy(to, here, from.len(), libc::process_vm_writev)
    }

    fn copy(&self, there: u64, here: *mut u8, len: usize, call: Copy) -> io::Result<()> {
        let mut done = 0;
        while done < len {
            let there = usize::try_from(there).unwrap_or(usize::MAX) + done;
            let [local, remote] = [
                here.wrapping_add(done),
                std::ptr::without_provenance_mut(there),
            ]
            .map(|start| libc::iovec {
                iov_base: start.cast(),
                iov_len: len - done,
            });
            // SAFETY: `here` is valid for `len` bytes, and `there` may be written if the call
            // writes, by the callers. The kernel checks addresses of both.
            let copied =
                unsafe { call(self.process, &raw const local, 1, &raw const remote, 1, 0) };
            match usize::try_from(copied) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(copied) => done += copied,
                Err(_) => {
                    let error = io::Error::last_os_error();
                    if error.kind() != io::ErrorKind::Interrupted {
                        return Err(error);
                    }
                }
            }
        }
        Ok(())
    }
}

type Copy = unsafe extern "C" fn(
    libc::pid_t,
    *const libc::iovec,
    libc::c_ulong,
    *const libc::iovec,
    libc::c_ulong,
    libc::c_ulong,
) -> libc::ssize_t;

/// Which chunks of a message are still nobody's, in a word of shared memory.
pub(super) struct Claims<'a>(pub(super) &'a AtomicU64);

/// Who has given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub(super) enum Gone {
    Receiver = 1 << 62,
    Sender = 1 << 63,
}

/// Chunks are numbered with so many bits.
pub(super) const BITS: u32 = 30;
const NUMBER: u64 = (1 << BITS) - 1;

impl Claims<'_> {
    /// Chunks `from..end` are nobody's.
    pub(super) fn open(&self, from: u32, end: u32) {
        let word = u64::from(from) | u64::from(end) << BITS;
        self.0.store(word, Ordering::Relaxed);
    }

    /// The first one is now the caller's; None if there is none.
    pub(super) fn first(&self) -> Option<u32> {
        self.claim(|first, end| (first, (first + 1, end)))
    }

    /// As [`Claims::first`] the last one.
    pub(super) fn last(&self) -> Option<u32> {
        self.claim(|first, end| (end - 1, (first, end - 1)))
    }

    fn claim(&self, take: impl Fn(u64, u64) -> (u64, (u64, u64))) -> Option<u32> {
        let split = |word: u64| (word & NUMBER, word >> BITS & NUMBER);
        let both = Ordering::AcqRel;
        let taken = self.0.fetch_update(both, Ordering::Acquire, |word| {
            let (first, end) = split(word);
            let open = word >> (2 * BITS) == 0 && first < end;
            open.then(|| {
                let (_, (first, end)) = take(first, end);
                first | end << BITS
            })
        });
        let (first, end) = split(taken.ok()?);
        u32::try_from(take(first, end).0).ok()
    }

    /// Nobody gets a chunk any more.
    pub(super) fn close(&self, gone: Gone) {
        self.0.fetch_or(gone as u64, Ordering::AcqRel);
    }

    pub(super) fn is_closed_by(&self, gone: Gone) -> bool {
        self.0.load(Ordering::Acquire) & gone as u64 != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claims_meet() {
        let word = AtomicU64::new(0);
        let claims = Claims(&word);
        assert_eq!(claims.first(), None);
        claims.open(2, 6);
        assert_eq!((claims.first(), claims.last()), (Some(2), Some(5)));
        assert_eq!((claims.first(), claims.last()), (Some(3), Some(4)));
        assert_eq!((claims.first(), claims.last()), (None, None));
        claims.open(0, 1 << (BITS - 1));
        assert_eq!(claims.last(), Some((1 << (BITS - 1)) - 1));
        claims.close(Gone::Receiver);
        assert_eq!((claims.first(), claims.last()), (None, None));
        assert!(claims.is_closed_by(Gone::Receiver) && !claims.is_closed_by(Gone::Sender));
    }

    #[test]
    fn every_chunk_is_claimed_once() {
        let word = AtomicU64::new(0);
        Claims(&word).open(0, 10_000);
        let claimed = |last: bool| {
            let claim = || match last {
                true => Claims(&word).last(),
                false => Claims(&word).first(),
            };
            std::iter::from_fn(claim).collect::<Vec<_>>()
        };
        let mut all = std::thread::scope(|scope| {
            let last = scope.spawn(|| claimed(true));
            let mut all = claimed(false);
            all.extend(last.join().unwrap());
            all
        });
        all.sort_unstable();
        assert!(all.into_iter().eq(0..10_000));
    }

    /// Itself as the other process.
    #[test]
    fn memory_is_read_and_written() {
        let mut there = *b"from there";
        let place = Place::of(there.as_mut_ptr());
        let peer = Peer::meet(&place).unwrap();
        let mut here = [0; 10];
        // SAFETY: of so many bytes.
        unsafe { peer.read(place.bytes_at, here.as_mut_ptr(), here.len()) }.unwrap();
        assert_eq!(&here, b"from there");
        let to = there.as_mut_ptr().expose_provenance() as u64;
        // SAFETY: of so many bytes, not borrowed now.
        unsafe { peer.write(to, b"from HERE!") }.unwrap();
        assert_eq!(&there, b"from HERE!");
        assert!(!peer.has_ended());
        // SAFETY: nothing is at address 0, and that is found.
        assert!(unsafe { peer.read(0, here.as_mut_ptr(), 8) }.is_err());
        let wrong = Place {
            proof: place.proof ^ 2,
            ..place
        };
        assert!(Peer::meet(&wrong).is_none());
    }

    #[test]
    fn the_end_is_seen() {
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        let process = i32::try_from(child.id()).unwrap();
        let end = pidfd_open(Pid::from_raw(process).unwrap(), PidfdFlags::empty()).unwrap();
        let peer = Peer { process, end };
        assert!(!peer.has_ended());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(peer.has_ended());
        // SAFETY: nothing is written: there is no such process.
        assert!(unsafe { peer.write(4096, b"x") }.is_err());
    }
}
