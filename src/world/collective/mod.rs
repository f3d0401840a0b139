//! The collectives of a [`World`]: here those in which all ranks get the same, and what the
//! others are made of.

mod objects;
mod parts;
mod ragged;
mod reduce;
mod staged;
mod tree;

pub use ragged::Ragged;

use super::engine::{Calls, Combine, Deferred, Root};
use super::node::{RESULT, SLOT};
use super::signature::{Call, Signature};
use super::{Core, Request, Team};
use crate::element::{self, Element, from_bits};
use crate::error::{Error, ErrorKind, Result};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Up to so many bytes in all go with the meeting itself; above, over the stage.
const SMALL: usize = 4 << 10;

impl Team {
    /// Waits until all ranks have called it. Everything written to arrays before, by any rank,
    /// is in its place and visible to all ranks afterwards.
    ///
    /// Collective: all ranks must call it, in the same order as other collectives.
    ///
    /// # Errors
    /// [`ErrorKind::Mismatch`] on all ranks if some called another collective;
    /// [`ErrorKind::Timeout`] naming ranks that did not come within the
    /// [time limit](crate::World#time-limit); [`ErrorKind::PeerFailed`].
    #[track_caller]
    pub fn barrier(&self) -> Result<()> {
        self.core.barrier(&Signature::new(Call::Barrier))
    }

    /// A barrier that is not waited for here: [`Request::wait`] returns when all ranks have called
    /// `ibarrier`. What this rank has written to arrays before the call is in its place by then, and
    /// the call waits for that.
    ///
    /// Collective: all ranks must call it, in the same order as other collectives, which may be
    /// called before it is waited for. It goes on while this rank waits for anything in this
    /// library, and while the request is looked at.
    ///
    /// ```no_run
    /// # fn f(world: &pgas::World) -> pgas::Result<()> {
    /// let mut all_here = world.ibarrier()?;
    /// while !all_here.is_done()? {
    ///     // Something useful.
    /// }
    /// all_here.wait()
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Team::barrier`], those of other ranks when it is waited for.
    #[track_caller]
    #[doc(alias = "MPI_Ibarrier")]
    pub fn ibarrier(&self) -> Result<Request<'_, ()>> {
        let barrier = Deferred::start(&self.core, Signature::new(Call::IBarrier))?;
        Ok(Request::waiting(&self.core, barrier).with(self.core.all()))
    }

    /// The `value` of rank `root`, on all ranks; other ranks' values are ignored.
    ///
    /// Collective, and no [barrier](Team::barrier): up to 24 bytes between ranks of one node are
    /// handed out, and the root goes on before the others have come. What the root has written to
    /// arrays before is in its place when another rank returns.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if there is no such root; else as [`Team::barrier`]. A rank
    /// that has gone on gets [`ErrorKind::Mismatch`] from a later collective: the next one that is a
    /// barrier, or the sixteenth broadcast.
    #[track_caller]
    pub fn broadcast<T: Element>(&self, root: usize, value: T) -> Result<T> {
        let mut one = [value];
        self.broadcast_slice(root, &mut one)?;
        Ok(one[0])
    }

    /// Fills `values` on all ranks with those of rank `root`. Lengths must agree.
    ///
    /// Collective, and no [barrier](Team::barrier): see [`Team::broadcast`].
    ///
    /// # Errors
    /// As [`Team::broadcast`]. On error `values` is unchanged or partly filled, each element whole.
    #[track_caller]
    pub fn broadcast_slice<T: Element>(&self, root: usize, values: &mut [T]) -> Result<()> {
        let core = &self.core;
        core.check_root_of_broadcast(root)?;
        let signature = Signature::new(Call::Broadcast)
            .detail(root)
            .count(values.len())
            .element::<T>();
        let total = size_of_val(values);
        let _turn = core.turn()?;
        // Of all collectives the only one that takes one meeting always: one that fails on some ranks
        // only must not leave them out of step.
        let engine = &core.engine;
        let handed_out = if core.rank == root {
            let bytes: &[u8] = bytemuck::cast_slice(values);
            engine.hand_out(&signature, root, (bytes, total), |_| Ok(()))
        } else {
            engine.hand_out(&signature, root, (&[], total), |bytes| fill(values, bytes))
        };
        if let Some(done) = handed_out {
            return done?;
        }
        if core.rank == root {
            let bytes: &[u8] = bytemuck::cast_slice(values);
            return if total <= SMALL {
                core.of_root(&signature, root, bytes, total).map(drop)
            } else {
                core.show_one(&signature, root, bytes, total, |_, _| ())
            };
        }
        if total <= SMALL {
            return fill(values, &core.of_root(&signature, root, &[], total)?);
        }
        if let Some(bits) = element::bits_mut(values) {
            let take = |at: usize, bytes: &[u8]| element::write_bytes(bits, at, bytes);
            return core.show_one(&signature, root, &[], total, take);
        }
        let mut bytes = vec![0; total];
        let take = |at: usize, from: &[u8]| element::write_bytes(&mut bytes, at, from);
        core.show_one(&signature, root, &[], total, take)?;
        fill(values, &bytes)
    }

    /// The `object` of rank `root`, on all ranks; what others give is ignored. Any serde type.
    ///
    /// Collective, and a [barrier](Team::barrier).
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] on all ranks if `root` gives none, if there is no such root,
    /// or if it cannot be encoded or decoded; else as [`Team::barrier`].
    #[track_caller]
    pub fn broadcast_obj<T: Serialize + DeserializeOwned>(
        &self,
        root: usize,
        object: Option<&T>,
    ) -> Result<T> {
        self.core.check_root("broadcast", root)?;
        let signature = Signature::new(Call::Broadcast)
            .detail(root)
            .count(usize::MAX)
            .object::<T>();
        let (mut mine, mut failed) = (None, Ok(()));
        if let Some(object) = object.filter(|_| self.core.rank == root) {
            match encode(object) {
                Ok(blob) => mine = Some(blob),
                // The others hear that there is none.
                Err(error) => failed = Err(error),
            }
        }
        let _turn = self.core.turn()?;
        // The length, or that there is nothing.
        let len = mine.as_ref().map_or(u64::MAX, |blob| blob.len() as u64);
        let len = self.core.of_root(&signature, root, &len.to_le_bytes(), 8)?;
        let len = len
            .first_chunk()
            .map_or(u64::MAX, |len| u64::from_le_bytes(*len));
        let Ok(len) = usize::try_from(len)
            .map_err(drop)
            .and_then(|len| match len {
                usize::MAX => Err(()),
                len => Ok(len),
            })
        else {
            failed?;
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!("broadcast: rank {root} gave no object"),
            )
            .with_peer(root));
        };
        let mine = mine.unwrap_or_default();
        if len <= SMALL {
            return decode(&self.core.of_root(&signature, root, &mine, len)?);
        }
        let mut blob = vec![0; len];
        self.core
            .show_one(&signature, root, &mine, len, |at, bytes| {
                blob[at..at + bytes.len()].copy_from_slice(bytes);
            })?;
        decode(if self.core.rank == root { &mine } else { &blob })
    }

    /// Every rank's `value`, by rank.
    ///
    /// Collective, and a [barrier](Team::barrier).
    ///
    /// # Errors
    /// As [`Team::barrier`].
    #[track_caller]
    pub fn all_gather<T: Element>(&self, value: T) -> Result<Vec<T>> {
        self.all_gather_slice(&[value])
    }

    /// Every rank's `values`, one after another by rank. Lengths must agree.
    ///
    /// Collective, and a [barrier](Team::barrier).
    ///
    /// # Errors
    /// As [`Team::barrier`].
    #[track_caller]
    pub fn all_gather_slice<T: Element>(&self, values: &[T]) -> Result<Vec<T>> {
        let signature = Signature::new(Call::AllGather)
            .count(values.len())
            .element::<T>();
        let mut all = bytemuck::allocation::zeroed_vec::<T::Bits>(values.len() * self.size());
        self.all_gather_bits::<T>(&signature, values, &mut all)?;
        element::vec_from_bits(all)
    }

    /// As [`Team::all_gather_slice`], into `all`, which has as many elements as all ranks together.
    ///
    /// # Errors
    /// As [`Team::barrier`]; [`ErrorKind::InvalidArgument`] if `all` has another length: the others
    /// get a mismatch.
    #[track_caller]
    pub fn all_gather_into<T: Element>(&self, values: &[T], all: &mut [T]) -> Result<()> {
        let signature = Signature::new(Call::AllGather)
            .count(values.len())
            .element::<T>();
        if all.len() != values.len() * self.size() {
            self.core.refuse();
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!(
                    "all_gather of {} elements on {} ranks into {}",
                    values.len(),
                    self.size(),
                    all.len()
                ),
            ));
        }
        element::fill_with(all, |bits| {
            self.all_gather_bits::<T>(&signature, values, bits)
        })
    }

    #[track_caller]
    fn all_gather_bits<T: Element>(
        &self,
        signature: &Signature,
        values: &[T],
        all: &mut [T::Bits],
    ) -> Result<()> {
        let core = &self.core;
        let bytes: &[u8] = bytemuck::cast_slice(values);
        let each = bytes.len();
        let _turn = core.turn()?;
        if each <= SMALL / core.size {
            let gathered = core.gather_bytes_in_turn(signature, bytes)?;
            element::write_bytes(all, 0, &gathered);
            return Ok(());
        }
        core.show_all(signature, bytes, &|_| each, |rank, at, bytes| {
            element::write_bytes(all, rank * each + at, bytes);
        })
    }

    /// Every rank's `object`, by rank: any serde type, of any encoded size.
    ///
    /// Collective, and a [barrier](Team::barrier).
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if it cannot be encoded or decoded; else as [`Team::barrier`].
    #[track_caller]
    pub fn all_gather_obj<T: Serialize + DeserializeOwned>(&self, object: &T) -> Result<Vec<T>> {
        let signature = Signature::new(Call::AllGather).detail(1).object::<T>();
        let blob = self.core.encode_or_refuse(object)?;
        let _turn = self.core.turn()?;
        self.core
            .all_blobs(&signature, &blob)?
            .iter()
            .map(|blob| decode(blob))
            .collect()
    }
}

impl Core {
    /// Meets the others, who call something else, so that they get a mismatch and do not wait: for
    /// calls that are wrong on this rank.
    #[track_caller]
    pub(crate) fn refuse(&self) {
        let _ = self.barrier(&Signature::new(Call::Refused));
    }

    #[track_caller]
    pub(super) fn check_root(&self, call: &str, root: usize) -> Result<()> {
        if root < self.size {
            return Ok(());
        }
        self.refuse();
        Err(self.no_root(call, root))
    }

    /// As [`Core::check_root`], where the others may not wait for each other.
    #[track_caller]
    fn check_root_of_broadcast(&self, root: usize) -> Result<()> {
        if root < self.size {
            return Ok(());
        }
        let _turn = self.turn()?;
        let refused = Signature::new(Call::Refused);
        if !self.engine.spoil(&refused) {
            let _ = self.barrier_in_turn(&refused);
        }
        Err(self.no_root("broadcast", root))
    }

    fn no_root(&self, call: &str, root: usize) -> Error {
        Error::new(
            ErrorKind::InvalidArgument,
            format!("{call} with root {root} of {} ranks", self.size),
        )
    }

    /// The object's bytes; refuses the call if there are none.
    #[track_caller]
    pub(super) fn encode_or_refuse<T: Serialize>(&self, object: &T) -> Result<Vec<u8>> {
        let encoded = encode(object);
        if encoded.is_err() {
            self.refuse();
        }
        encoded
    }

    /// All ranks' `mine`, of any lengths, by rank. The caller has the [`turn`](Core::turn).
    #[track_caller]
    fn all_blobs(&self, signature: &Signature, mine: &[u8]) -> Result<Vec<Vec<u8>>> {
        let lens = self.lens(signature, mine.len())?;
        if lens.iter().sum::<usize>() <= SMALL {
            return self.padded(signature, mine, &lens);
        }
        let mut all: Vec<_> = lens.iter().map(|&len| vec![0; len]).collect();
        self.show_all(signature, mine, &|rank| lens[rank], |rank, at, bytes| {
            all[rank][at..at + bytes.len()].copy_from_slice(bytes);
        })?;
        Ok(all)
    }

    /// All ranks' lengths, by rank: a meeting.
    fn lens(&self, signature: &Signature, mine: usize) -> Result<Vec<usize>> {
        let lens = self.gather_bytes_in_turn(signature, &(mine as u64).to_le_bytes())?;
        let len = |len: &[u8; 8]| usize::try_from(u64::from_le_bytes(*len)).unwrap_or(0);
        Ok(lens.as_chunks::<8>().0.iter().map(len).collect())
    }

    /// All ranks' `mine`, of these lengths, all sent as long as the longest.
    fn padded(&self, signature: &Signature, mine: &[u8], lens: &[usize]) -> Result<Vec<Vec<u8>>> {
        let longest = lens.iter().copied().max().unwrap_or(0);
        let mut padded = mine.to_vec();
        padded.resize(longest, 0);
        let all = self.gather_bytes_in_turn(signature, &padded)?;
        let part = |(rank, &len): (usize, &usize)| all[rank * longest..][..len].to_vec();
        Ok(lens.iter().enumerate().map(part).collect())
    }

    /// The `total` bytes that the root has as `mine`, on all ranks. The caller has the
    /// [`turn`](Core::turn).
    fn of_root(
        &self,
        signature: &Signature,
        root: usize,
        mine: &[u8],
        total: usize,
    ) -> Result<Vec<u8>> {
        let mut result = Vec::with_capacity(total);
        for (from, to) in pieces(total, SLOT) {
            let piece = mine.get(from..to).unwrap_or(&[]);
            let combine = Combine::Root(Root {
                rank: root,
                len: to - from,
            });
            self.engine.exchange(signature, piece, &combine, |bytes| {
                result.extend_from_slice(bytes);
            })?;
        }
        Ok(result)
    }

    pub(crate) fn barrier(&self, signature: &Signature) -> Result<()> {
        self.meet_once(signature, &[], &Combine::Nothing, |_| ())
    }

    /// A collective of one exchange, in which nothing of the user's is called. It needs no
    /// [`turn`](Core::turn): that other threads are in no meeting is enough.
    fn meet_once<R>(
        &self,
        signature: &Signature,
        mine: &[u8],
        combine: &Combine<'_>,
        read: impl FnOnce(&[u8]) -> R,
    ) -> Result<R> {
        self.turn.is_not_mine()?;
        let concerned = self.concerned_with_team();
        let begun = self.engine.begin(signature)?;
        if self.turn.is_free() {
            let call = Calls {
                signature,
                mine,
                combine,
            };
            return self.engine.exchange_begun(begun, call, read);
        }
        // Another thread is between two meetings of one collective.
        drop((begun, concerned));
        let _turn = self.turn()?;
        self.engine.exchange(signature, mine, combine, read)
    }

    /// The caller has the [`turn`](Core::turn).
    pub(crate) fn barrier_in_turn(&self, signature: &Signature) -> Result<()> {
        self.engine
            .exchange(signature, &[], &Combine::Nothing, |_| ())
    }

    /// All ranks' `mine`, of one length, one after another.
    pub(crate) fn gather_bytes(&self, signature: &Signature, mine: &[u8]) -> Result<Vec<u8>> {
        let _turn = self.turn()?;
        self.gather_bytes_in_turn(signature, mine)
    }

    fn gather_bytes_in_turn(&self, signature: &Signature, mine: &[u8]) -> Result<Vec<u8>> {
        let (ranks, each) = (self.size, mine.len());
        let step = SLOT.min(RESULT / ranks).max(1);
        let mut all = vec![0; ranks * each];
        for (from, to) in pieces(each, step) {
            let len = to - from;
            self.engine
                .exchange(signature, &mine[from..to], &Combine::Concat, |bytes| {
                    for (rank, piece) in bytes.chunks_exact(len.max(1)).enumerate() {
                        let start = rank * each + from;
                        all[start..start + len].copy_from_slice(piece);
                    }
                })?;
        }
        Ok(all)
    }

    /// As [`Core::all_blobs`], for what is small: the start, keys, news.
    pub(crate) fn gather_blobs(&self, signature: &Signature, mine: &[u8]) -> Result<Vec<Vec<u8>>> {
        let lens = self.lens(signature, mine.len())?;
        self.padded(signature, mine, &lens)
    }
}

/// `0..total` in pieces of at most `step`; one empty piece for nothing, since even an empty
/// collective is a meeting of all ranks.
fn pieces(total: usize, step: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..total.div_ceil(step).max(1)).map(move |piece| (piece * step, total.min((piece + 1) * step)))
}

pub(super) fn encode<T: Serialize>(object: &T) -> Result<Vec<u8>> {
    ucxrun::codec::encode(object)
        .map_err(|error| Error::new(ErrorKind::InvalidArgument, error.to_string()))
}

pub(super) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T> {
    ucxrun::codec::decode(bytes, bytes.len())
        .map_err(|error| Error::new(ErrorKind::InvalidArgument, error.to_string()))
}

fn fill<T: Element>(values: &mut [T], bytes: &[u8]) -> Result<()> {
    if let Some(bits) = element::bits_mut(values) {
        let len = bytes.len().min(size_of_val(bits));
        element::write_bytes(bits, 0, &bytes[..len]);
        return Ok(());
    }
    for (value, bytes) in values.iter_mut().zip(bytes.chunks_exact(size_of::<T>())) {
        *value = from_bits(bytemuck::pod_read_unaligned::<T::Bits>(bytes))?;
    }
    Ok(())
}

/// A part from rank `from` that should have so many bytes.
fn expect_len(from: usize, found: usize, expected: usize) -> Result<()> {
    if found == expected {
        return Ok(());
    }
    let text = format!("rank {from} sent {found} bytes of a collective, not {expected}");
    Err(Error::new(ErrorKind::Mismatch, text).with_peer(from))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_cover_everything_once() {
        let all = |total, step| pieces(total, step).collect::<Vec<_>>();
        assert_eq!(all(0, 10), [(0, 0)]);
        assert_eq!(all(10, 10), [(0, 10)]);
        assert_eq!(all(25, 10), [(0, 10), (10, 20), (20, 25)]);
    }
}
