//! Collectives in which ranks give parts to each other: gather, scatter, all-to-all.
//!
//! All ranks meet first, so calls that do not go together are found; then the parts travel as
//! messages from rank to rank.

use super::{Ragged, decode, encode};
use crate::dist::block_start;
use crate::element::Element;
use crate::error::{Error, ErrorKind, Result};
use crate::operator::Combine;
use crate::world::messages::{bytes_of, values_of};
use crate::world::{Call, Core, Signature, Team};
use serde::Serialize;
use serde::de::DeserializeOwned;

impl Team {
    /// Every rank's `values` on rank `root`, by rank; lengths may differ. None on other ranks.
    ///
    /// Collective.
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
    /// Collective.
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
                .gather_blobs(&signature, bytemuck::cast_slice(values))?,
        )
    }

    /// This rank's row of what rank `root` gives: `rows` has one for each rank there, and is ignored
    /// elsewhere.
    ///
    /// Collective.
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
    /// Collective.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] on all ranks if `values` cannot be divided; else as
    /// [`Team::barrier`].
    #[track_caller]
    pub fn all_to_all<T: Element>(&self, values: &[T]) -> Result<Vec<T>> {
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
        let each = values.len() / size;
        let rows = (0..size).map(|rank| bytes_of(&values[rank * each..(rank + 1) * each]));
        let all = self.core.exchange_parts(&signature, rows.collect())?;
        Ok(rows_of(all)?.into_values())
    }

    /// Row `k` of `rows` to rank `k`, for all ranks: what comes back has the rows that all ranks have
    /// for this one, by rank. Lengths may differ.
    ///
    /// Collective.
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
            .exchange_parts(&signature, (0..size).map(row).collect())?;
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
        let mut all = values.to_vec();
        self.all_reduce_as(Call::ReduceScatter, 0, &mut all, op)?;
        let start = |rank| block_start(all.len(), self.core.size, rank);
        let mine = start(self.core.rank)..start(self.core.rank + 1);
        Ok(all[mine].to_vec())
    }
}

fn rows_of<T: Element>(blobs: Vec<Vec<u8>>) -> Result<Ragged<T>> {
    let mut rows = Ragged::new();
    for blob in blobs {
        rows.push_vec(values_of(&blob)?);
    }
    Ok(rows)
}

impl Core {
    /// All ranks' `mine` on the root.
    fn gather_parts(
        &self,
        signature: &Signature,
        root: usize,
        mine: Vec<u8>,
    ) -> Result<Option<Vec<Vec<u8>>>> {
        let _turn = self.turn()?;
        self.barrier_in_turn(signature)?;
        let part = self.next_part();
        if self.rank != root {
            self.send_part(root, part, mine)?.wait()?;
            return Ok(None);
        }
        let mut mine = Some(mine);
        let all = (0..self.size).map(|rank| match rank == root {
            true => Ok(mine.take().unwrap_or_default()),
            false => self.receive_part(rank, part),
        });
        all.collect::<Result<_>>().map(Some)
    }

    /// This rank's part of what the root gives.
    fn scatter_parts(
        &self,
        signature: &Signature,
        root: usize,
        parts: Option<Vec<Vec<u8>>>,
    ) -> Result<Vec<u8>> {
        let _turn = self.turn()?;
        // How many the root has tells whether it will send any.
        let count = match &parts {
            Some(parts) if self.rank == root => parts.len() as u64,
            _ => 0,
        };
        let count = self.of_root(signature, root, &count.to_le_bytes(), 8)?;
        if count != (self.size as u64).to_le_bytes() {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!("scatter: rank {root} has not one part for each rank"),
            )
            .with_peer(root));
        }
        let part = self.next_part();
        if self.rank != root {
            return self.receive_part(root, part);
        }
        let mut mine = Vec::new();
        let mut sends = Vec::new();
        for (rank, bytes) in parts.into_iter().flatten().enumerate() {
            if rank == root {
                mine = bytes;
            } else {
                sends.push(self.send_part(rank, part, bytes)?);
            }
        }
        for send in sends {
            send.wait()?;
        }
        Ok(mine)
    }

    /// What all ranks have for this one, by rank.
    fn exchange_parts(
        &self,
        signature: &Signature,
        mut parts: Vec<Vec<u8>>,
    ) -> Result<Vec<Vec<u8>>> {
        let _turn = self.turn()?;
        self.barrier_in_turn(signature)?;
        let part = self.next_part();
        let mut sends = Vec::new();
        // Each rank begins with the one after it, so that not all send to the same one.
        for step in 1..self.size {
            let to = (self.rank + step) % self.size;
            sends.push(self.send_part(to, part, std::mem::take(&mut parts[to]))?);
        }
        for step in 1..self.size {
            let from = (self.rank + self.size - step) % self.size;
            parts[from] = self.receive_part(from, part)?;
        }
        for send in sends {
            send.wait()?;
        }
        Ok(parts)
    }
}
