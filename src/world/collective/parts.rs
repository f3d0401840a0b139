//! Collectives in which ranks give parts to each other: gather, scatter, all-to-all.
//!
//! All ranks meet first, so calls that do not go together are found. What is small goes with the
//! meeting; else parts go over the stage inside a node, and as messages from rank to rank between
//! nodes.

use super::reduce::Vectors;
use super::staged::{First, Shower, overlap};
use super::{Ragged, SMALL, decode, encode};
use crate::dist::{block_start, starts};
use crate::element::{self, Element};
use crate::error::{Error, ErrorKind, Result};
use crate::operator::Combine;
use crate::world::messages::{bytes_of, values_of};
use crate::world::stage::Window;
use crate::world::{Call, Core, Request, Signature, Team};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::ops::Range;

impl Team {
    /// Every rank's `values` on rank `root`, by rank; lengths may differ. None on other ranks.
    ///
    /// Collective, and a [barrier](Team::barrier).
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if there is no such root; else as [`Team::barrier`].
    #[track_caller]
    pub fn gather<T: Element>(&self, root: usize, values: &[T]) -> Result<Option<Ragged<T>>> {
        self.core.check_root("gather", root)?;
        let signature = Signature::new(Call::Gather).detail(root).element::<T>();
        let all = self.core.gather_parts(&signature, root, bytes_of(values))?;
        all.map(|all| rows_of(all)).transpose()
    }

    /// Every rank's `object` on rank `root`, by rank. None on other ranks.
    ///
    /// Collective, and a [barrier](Team::barrier).
    ///
    /// # Errors
    /// As [`Team::gather`]; [`ErrorKind::InvalidArgument`] if one cannot be encoded or decoded.
    #[track_caller]
    pub fn gather_obj<T: Serialize + DeserializeOwned>(
        &self,
        root: usize,
        object: &T,
    ) -> Result<Option<Vec<T>>> {
        self.core.check_root("gather", root)?;
        let signature = Signature::new(Call::Gather).detail(root).object::<T>();
        let blob = self.core.encode_or_refuse(object)?;
        let all = self.core.gather_parts(&signature, root, blob)?;
        all.map(|all| all.iter().map(|blob| decode(blob)).collect())
            .transpose()
    }

    /// Every rank's `values`, by rank, on all ranks; lengths may differ.
    ///
    /// Collective, and a [barrier](Team::barrier).
    ///
    /// # Errors
    /// As [`Team::barrier`].
    #[track_caller]
    pub fn all_gather_ragged<T: Element>(&self, values: &[T]) -> Result<Ragged<T>> {
        let signature = Signature::new(Call::AllGather).detail(2).element::<T>();
        let _turn = self.core.turn()?;
        rows_of(
            self.core
                .all_blobs(&signature, bytemuck::cast_slice(values))?,
        )
    }

    /// This rank's row of what rank `root` gives: `rows` has one for each rank there, and is ignored
    /// elsewhere.
    ///
    /// Collective, and a [barrier](Team::barrier).
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if there is no such root, and on all ranks if it gives no
    /// rows or not one for each rank; else as [`Team::barrier`].
    #[track_caller]
    pub fn scatter<T: Element>(&self, root: usize, rows: Option<&Ragged<T>>) -> Result<Vec<T>> {
        self.core.check_root("scatter", root)?;
        let signature = Signature::new(Call::Scatter).detail(root).element::<T>();
        let rows = rows.map(|rows| rows.iter().map(|row| bytes_of(row)).collect());
        values_of(&self.core.scatter_parts(&signature, root, rows)?)
    }

    /// This rank's object of those that rank `root` gives, as [`Team::scatter`].
    ///
    /// # Errors
    /// As [`Team::scatter`]; [`ErrorKind::InvalidArgument`] if it cannot be encoded or decoded.
    #[track_caller]
    pub fn scatter_obj<T: Serialize + DeserializeOwned>(
        &self,
        root: usize,
        objects: Option<&[T]>,
    ) -> Result<T> {
        self.core.check_root("scatter", root)?;
        let signature = Signature::new(Call::Scatter).detail(root).object::<T>();
        let objects = objects.filter(|_| self.core.rank == root);
        let rows = objects.map(|objects| objects.iter().map(encode).collect::<Result<Vec<_>>>());
        // Without rows all hear that there are none.
        let (rows, failed) = match rows.transpose() {
            Ok(rows) => (rows, Ok(())),
            Err(error) => (None, Err(error)),
        };
        let mine = self.core.scatter_parts(&signature, root, rows);
        failed?;
        decode(&mine?)
    }

    /// The `k`-th part of `values` to rank `k`, for all ranks: what comes back is the parts that all
    /// ranks have for this one, by rank. The parts are of equal length, which must agree.
    ///
    /// Collective, and a [barrier](Team::barrier).
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] on all ranks if `values` cannot be divided; else as
    /// [`Team::barrier`].
    #[track_caller]
    pub fn all_to_all<T: Element>(&self, values: &[T]) -> Result<Vec<T>> {
        let mut all = bytemuck::allocation::zeroed_vec::<T::Bits>(values.len());
        self.all_to_all_bits(values, &mut all)?;
        element::vec_from_bits(all)
    }

    /// As [`Team::all_to_all`], into `all`, which has the length of `values`.
    ///
    /// # Errors
    /// As [`Team::all_to_all`]; [`ErrorKind::InvalidArgument`] if `all` has another length: the
    /// others get a mismatch.
    #[track_caller]
    pub fn all_to_all_into<T: Element>(&self, values: &[T], all: &mut [T]) -> Result<()> {
        if all.len() != values.len() {
            self.core.refuse();
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!("all_to_all of {} elements into {}", values.len(), all.len()),
            ));
        }
        element::fill_with(all, |bits| self.all_to_all_bits(values, bits))
    }

    #[track_caller]
    fn all_to_all_bits<T: Element>(&self, values: &[T], all: &mut [T::Bits]) -> Result<()> {
        let size = self.core.size;
        let signature = Signature::new(Call::AllToAll)
            .count(values.len())
            .element::<T>();
        if !values.len().is_multiple_of(size) {
            // All have come here with that length, or get a mismatch.
            self.core.barrier(&signature)?;
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!("all_to_all of {} elements on {size} ranks", values.len()),
            ));
        }
        let each = size_of_val(values) / size;
        let rows = bytemuck::cast_slice(values);
        self.core
            .exchange_equal(&signature, rows, each, |rank, at, bytes| {
                element::write_bytes(all, rank * each + at, bytes);
            })
    }

    /// Row `k` of `rows` to rank `k`, for all ranks: what comes back has the rows that all ranks have
    /// for this one, by rank. Lengths may differ.
    ///
    /// Collective, and a [barrier](Team::barrier).
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if there is not one row for each rank, after the other ranks
    /// were given empty ones; else as [`Team::barrier`].
    #[track_caller]
    pub fn all_to_all_ragged<T: Element>(&self, rows: &Ragged<T>) -> Result<Ragged<T>> {
        let signature = Signature::new(Call::AllToAll)
            .count(usize::MAX)
            .element::<T>();
        let size = self.core.size;
        let row = |rank| match rows.len() == size {
            true => bytes_of(&rows[rank]),
            false => Vec::new(),
        };
        let all = self
            .core
            .exchange_rows(&signature, (0..size).map(row).collect())?;
        if rows.len() != size {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!("all_to_all of {} rows on {size} ranks", rows.len()),
            ));
        }
        rows_of(all)
    }

    /// The values of all ranks combined by `op`, element by element; this rank gets its part of the
    /// result, as [`Dist::Block`](crate::Dist::Block) divides it. Lengths must agree.
    ///
    /// Collective, and a [barrier](Team::barrier).
    ///
    /// # Errors
    /// As [`Team::barrier`].
    #[track_caller]
    pub fn reduce_scatter<T: Element>(&self, values: &[T], op: impl Combine<T>) -> Result<Vec<T>> {
        let start = |rank| block_start(values.len(), self.core.size, rank);
        let mine = start(self.core.rank)..start(self.core.rank + 1);
        let mut part = values[mine.clone()].to_vec();
        let vectors = Vectors::Apart(values, mine, &mut part);
        self.reduce_as(Call::ReduceScatter, None, vectors, &op)?;
        Ok(part)
    }
}

fn rows_of<T: Element>(blobs: Vec<Vec<u8>>) -> Result<Ragged<T>> {
    let mut rows = Ragged::new();
    for blob in blobs {
        rows.push_vec(values_of(&blob)?);
    }
    Ok(rows)
}

/// For each rank where its row begins in what a rank shows, and how long it is: two words.
const ENTRY: usize = 16;

/// What a rank shows to give each of several ranks a row: entries, then rows.
fn with_entries(rows: &[Vec<u8>]) -> Vec<u8> {
    let entries = rows.len() * ENTRY;
    let lens: Vec<usize> = rows.iter().map(Vec::len).collect();
    let mut bytes = Vec::with_capacity(entries + lens.iter().sum::<usize>());
    for (start, len) in starts(&lens).into_iter().zip(&lens) {
        bytes.extend_from_slice(&((entries + start) as u64).to_le_bytes());
        bytes.extend_from_slice(&(*len as u64).to_le_bytes());
    }
    rows.iter().for_each(|row| bytes.extend_from_slice(row));
    bytes
}

/// A row that is taken out of what a rank shows, window by window.
#[derive(Default)]
struct Row {
    /// Where it is there, once the entry has been seen.
    range: Range<usize>,
    bytes: Vec<u8>,
}

impl Row {
    /// Takes what is in `bytes`, which begin at `start`. The row's entry is entry `place`.
    fn take(&mut self, place: usize, start: usize, bytes: &[u8]) {
        let end = start + bytes.len();
        let entry = place * ENTRY;
        // Windows are whole multiples of entries.
        if start <= entry && entry + ENTRY <= end {
            let word = |at: usize| {
                let word = bytes[entry - start..][at..].first_chunk();
                word.map_or(0, |word| {
                    usize::try_from(u64::from_le_bytes(*word)).unwrap_or(0)
                })
            };
            self.range = word(0)..word(0).saturating_add(word(8));
        }
        let (from, to) = (self.range.start.max(start), self.range.end.min(end));
        if from < to {
            self.bytes
                .extend_from_slice(&bytes[from - start..to - start]);
        }
    }
}

impl Core {
    /// All ranks' `mine` on the root.
    #[track_caller]
    pub(super) fn gather_parts(
        &self,
        signature: &Signature,
        root: usize,
        mine: Vec<u8>,
    ) -> Result<Option<Vec<Vec<u8>>>> {
        let _turn = self.turn()?;
        let lens = self.lens(signature, mine.len())?;
        if lens.iter().sum::<usize>() <= SMALL {
            let all = self.padded(signature, &mine, &lens)?;
            return Ok((self.rank == root).then_some(all));
        }
        // Of all nodes, though only the root's uses it here.
        self.stage(signature, &mut First::Met)?;
        let part = self.next_part();
        if self.nodes.place_of(root).is_none() {
            self.send_part(root, part, mine)?.wait()?;
            return Ok(None);
        }
        // Over the stage on the root's node, as messages from others.
        let members = self.nodes.mine();
        let longest = members.iter().map(|&rank| lens[rank]).max().unwrap_or(0);
        let mut all = vec![Vec::new(); self.size];
        self.staged(
            signature,
            First::Met,
            (longest, 1),
            &mut Shower(
                |range: Range<usize>, window: Window<'_>| {
                    if self.rank != root {
                        window.show(0, overlap(&mine, &range));
                    }
                    Ok(())
                },
                |range: Range<usize>, window: Window<'_>| {
                    for (member, &rank) in members.iter().enumerate() {
                        if self.rank == root && rank != root {
                            let len = lens[rank].saturating_sub(range.start).min(range.len());
                            all[rank].extend_from_slice(window.of(member, 0..len));
                        }
                    }
                    Ok(())
                },
            ),
        )?;
        if self.rank != root {
            return Ok(None);
        }
        for (rank, bytes) in all.iter_mut().enumerate() {
            if self.nodes.place_of(rank).is_none() {
                *bytes = self.receive_part(rank, part)?;
            }
        }
        all[root] = mine;
        Ok(Some(all))
    }

    /// This rank's part of what the root gives.
    #[track_caller]
    fn scatter_parts(
        &self,
        signature: &Signature,
        root: usize,
        parts: Option<Vec<Vec<u8>>>,
    ) -> Result<Vec<u8>> {
        let _turn = self.turn()?;
        let parts = parts.filter(|_| self.rank == root).unwrap_or_default();
        // How many the root has tells whether it will send any.
        let bytes: usize = parts.iter().map(Vec::len).sum();
        let mut head = (parts.len() as u64).to_le_bytes().to_vec();
        head.extend_from_slice(&(bytes as u64).to_le_bytes());
        let head = self.of_root(signature, root, &head, 16)?;
        let (count, bytes) = head.split_at(8);
        if count != (self.size as u64).to_le_bytes() {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!("scatter: rank {root} has not one part for each rank"),
            )
            .with_peer(root));
        }
        let bytes = bytes
            .first_chunk()
            .map_or(0, |bytes| u64::from_le_bytes(*bytes));
        let total = usize::try_from(bytes).unwrap_or(0) + self.size * ENTRY;
        let mut row = Row::default();
        if total <= SMALL {
            let all = self.of_root(signature, root, &with_entries(&parts), total)?;
            row.take(self.rank, 0, &all);
            return Ok(row.bytes);
        }
        self.stage(signature, &mut First::Met)?;
        let part = self.next_part();
        let Some(shower) = self.nodes.place_of(root) else {
            return self.receive_part(root, part);
        };
        let shown = with_entries(&parts);
        let mut sends = Vec::new();
        for (rank, bytes) in parts.into_iter().enumerate() {
            if self.nodes.place_of(rank).is_none() {
                sends.push(self.send_part(rank, part, bytes)?);
            }
        }
        self.staged(
            signature,
            First::Met,
            (total, ENTRY),
            &mut Shower(
                |range: Range<usize>, window: Window<'_>| {
                    window.show(0, overlap(&shown, &range));
                    Ok(())
                },
                |range: Range<usize>, window: Window<'_>| {
                    let bytes = window.of(shower, 0..range.len());
                    row.take(self.rank, range.start, bytes);
                    Ok(())
                },
            ),
        )?;
        for send in sends {
            send.wait()?;
        }
        Ok(row.bytes)
    }

    /// Row `k` of each rank, `each` bytes long, to rank `k`: what all ranks have for this one is
    /// passed to `take` with its rank and where in the row it begins.
    #[track_caller]
    fn exchange_equal(
        &self,
        signature: &Signature,
        rows: &[u8],
        each: usize,
        mut take: impl FnMut(usize, usize, &[u8]),
    ) -> Result<()> {
        let _turn = self.turn()?;
        let mut first = First::Meet;
        if self.nodes.count() > 1 {
            self.barrier_in_turn(signature)?;
            first = First::Met;
        }
        let part = self.next_part();
        let row = |rank: usize| &rows[rank * each..(rank + 1) * each];
        let sends = self.send_away(part, |rank| row(rank).to_vec())?;
        let (members, me) = (self.nodes.mine(), self.nodes.my_place());
        self.staged(
            signature,
            first,
            (members.len() * each, 1),
            &mut Shower(
                |range: Range<usize>, window: Window<'_>| {
                    for (member, &rank) in members.iter().enumerate() {
                        let (from, to) = (
                            range.start.max(member * each),
                            range.end.min((member + 1) * each),
                        );
                        if from < to && member != me {
                            let bytes = &row(rank)[from - member * each..to - member * each];
                            window.show(from - range.start, bytes);
                        }
                    }
                    Ok(())
                },
                |range: Range<usize>, window: Window<'_>| {
                    let (from, to) = (range.start.max(me * each), range.end.min((me + 1) * each));
                    for (member, &rank) in members.iter().enumerate() {
                        if from < to && member != me {
                            let bytes = window.of(member, from - range.start..to - range.start);
                            take(rank, from - me * each, bytes);
                        }
                    }
                    Ok(())
                },
            ),
        )?;
        take(self.rank, 0, row(self.rank));
        self.receive_from_away(part, |rank, bytes| {
            super::expect_len(rank, bytes.len(), each)?;
            take(rank, 0, &bytes);
            Ok(())
        })?;
        sends.into_iter().try_for_each(Request::wait)
    }

    /// What all ranks have for this one, by rank; rows of any lengths.
    #[track_caller]
    pub(super) fn exchange_rows(
        &self,
        signature: &Signature,
        rows: Vec<Vec<u8>>,
    ) -> Result<Vec<Vec<u8>>> {
        let _turn = self.turn()?;
        let members = self.nodes.mine();
        let here: Vec<_> = members.iter().map(|&rank| rows[rank].clone()).collect();
        let shown = with_entries(&here);
        let lens = self.lens(signature, shown.len())?;
        let longest = members.iter().map(|&rank| lens[rank]).max().unwrap_or(0);
        let part = self.next_part();
        let sends = self.send_away(part, |rank| rows[rank].clone())?;
        let me = self.nodes.my_place();
        let mut taken: Vec<Row> = members.iter().map(|_| Row::default()).collect();
        self.staged(
            signature,
            First::Met,
            (longest, ENTRY),
            &mut Shower(
                |range: Range<usize>, window: Window<'_>| {
                    window.show(0, overlap(&shown, &range));
                    Ok(())
                },
                |range: Range<usize>, window: Window<'_>| {
                    for (member, row) in taken.iter_mut().enumerate() {
                        let len = lens[members[member]].saturating_sub(range.start);
                        let bytes = window.of(member, 0..len.min(range.len()));
                        row.take(me, range.start, bytes);
                    }
                    Ok(())
                },
            ),
        )?;
        let mut all = vec![Vec::new(); self.size];
        for (row, &rank) in taken.into_iter().zip(members) {
            all[rank] = row.bytes;
        }
        self.receive_from_away(part, |rank, bytes| {
            all[rank] = bytes;
            Ok(())
        })?;
        sends.into_iter().try_for_each(Request::wait)?;
        Ok(all)
    }

    /// Starts to send rows to the ranks of other nodes.
    fn send_away(&self, part: u32, row: impl Fn(usize) -> Vec<u8>) -> Result<Vec<Request<'_, ()>>> {
        // Each rank begins with the one after it, so that not all send to the same one.
        let others = (1..self.size).map(|step| (self.rank + step) % self.size);
        let away = others.filter(|&rank| self.nodes.place_of(rank).is_none());
        away.map(|rank| self.send_part(rank, part, row(rank)))
            .collect()
    }

    /// Receives the rows of the ranks of other nodes.
    fn receive_from_away(
        &self,
        part: u32,
        mut take: impl FnMut(usize, Vec<u8>) -> Result<()>,
    ) -> Result<()> {
        let others = (1..self.size).map(|step| (self.rank + self.size - step) % self.size);
        for rank in others.filter(|&rank| self.nodes.place_of(rank).is_none()) {
            take(rank, self.receive_part(rank, part)?)?;
        }
        Ok(())
    }
}
