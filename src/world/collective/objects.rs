//! Collectives on serde types that combine, or in which every rank has something for every other.
//! Built of those that gather and give parts: what is combined is decoded first.

use super::{decode, encode};
use crate::error::{Error, ErrorKind, Result};
use crate::operator::number_of_function;
use crate::world::{Call, Core, Signature, Team};
use serde::Serialize;
use serde::de::DeserializeOwned;

impl Team {
    /// The objects of all ranks combined by `f`, which must be associative and is applied in rank
    /// order. Any serde type. Every rank gets every object and combines them itself, so the results
    /// are as equal as `f` makes them.
    ///
    /// Collective, and a [barrier](Team::barrier).
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if an object cannot be encoded, where the others get a mismatch,
    /// or decoded, with the same message on all ranks; [`ErrorKind::Mismatch`] on all ranks also for
    /// [functions that differ](crate::Combine#functions-that-differ); else as [`Team::barrier`].
    #[track_caller]
    pub fn all_reduce_obj<T, F>(&self, object: &T, f: F) -> Result<T>
    where
        T: Serialize + DeserializeOwned,
        F: Fn(T, T) -> T,
    {
        let signature = signature::<T, F>(Call::AllReduce);
        let blobs = self.core.blobs_of_all(&signature, object)?;
        combine("all_reduce", &blobs, f)?.ok_or_else(nobody)
    }

    /// The objects of all ranks combined by `f`, in rank order, on rank `root`, which alone gets
    /// them; None on others. As [`Team::all_reduce_obj`].
    ///
    /// Collective, and a [barrier](Team::barrier).
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if there is no such root; else as [`Team::all_reduce_obj`], of
    /// decoding on the root only.
    #[track_caller]
    pub fn reduce_obj<T, F>(&self, root: usize, object: &T, f: F) -> Result<Option<T>>
    where
        T: Serialize + DeserializeOwned,
        F: Fn(T, T) -> T,
    {
        self.core.check_root("reduce", root)?;
        let signature = signature::<T, F>(Call::Reduce).root(root);
        let blob = self.core.encode_or_refuse(object)?;
        match self.core.gather_parts(&signature, root, blob)? {
            Some(blobs) => combine("reduce", &blobs, f),
            None => Ok(None),
        }
    }

    /// The objects of this rank and of all before it combined by `f`, in rank order. As
    /// [`Team::all_reduce_obj`]: every rank gets every object.
    ///
    /// Collective, and a [barrier](Team::barrier).
    ///
    /// # Errors
    /// As [`Team::all_reduce_obj`], of decoding on the ranks that need the object.
    #[track_caller]
    pub fn scan_obj<T, F>(&self, object: &T, f: F) -> Result<T>
    where
        T: Serialize + DeserializeOwned,
        F: Fn(T, T) -> T,
    {
        let signature = signature::<T, F>(Call::Scan);
        let blobs = self.core.blobs_of_all(&signature, object)?;
        combine("scan", &blobs[..=self.rank()], f)?.ok_or_else(nobody)
    }

    /// The objects of all ranks before this one combined by `f`, in rank order; None on rank 0. As
    /// [`Team::scan_obj`].
    ///
    /// Collective, and a [barrier](Team::barrier).
    ///
    /// # Errors
    /// As [`Team::scan_obj`].
    #[track_caller]
    pub fn exscan_obj<T, F>(&self, object: &T, f: F) -> Result<Option<T>>
    where
        T: Serialize + DeserializeOwned,
        F: Fn(T, T) -> T,
    {
        let signature = signature::<T, F>(Call::Scan).exclusive();
        let blobs = self.core.blobs_of_all(&signature, object)?;
        combine("exscan", &blobs[..self.rank()], f)
    }

    /// Object `k` of `objects` to rank `k`, for all ranks: what comes back is the objects that all
    /// ranks have for this one, by rank.
    ///
    /// Collective, and a [barrier](Team::barrier).
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] on all ranks if there is not one object for each rank, or
    /// [`ErrorKind::Mismatch`] if that is so on some; [`ErrorKind::InvalidArgument`] if one cannot
    /// be encoded, where the others get a mismatch, or decoded, on the rank that it is for; else as
    /// [`Team::barrier`].
    #[track_caller]
    pub fn all_to_all_obj<T>(&self, objects: &[T]) -> Result<Vec<T>>
    where
        T: Serialize + DeserializeOwned,
    {
        let signature = Signature::new(Call::AllToAll).objects::<T>();
        let blobs = self.core.blobs_for_me("all_to_all", signature, objects)?;
        let objects = blobs.iter().enumerate();
        objects
            .map(|(rank, blob)| decode_of("all_to_all", rank, blob))
            .collect()
    }

    /// Of what all ranks have for this one, which is object `k` of `objects` for rank `k`, the
    /// combination by `f`, in rank order.
    ///
    /// Collective, and a [barrier](Team::barrier).
    ///
    /// # Errors
    /// As [`Team::all_to_all_obj`]; [`ErrorKind::Mismatch`] on all ranks also for
    /// [functions that differ](crate::Combine#functions-that-differ).
    #[track_caller]
    pub fn reduce_scatter_obj<T, F>(&self, objects: &[T], f: F) -> Result<T>
    where
        T: Serialize + DeserializeOwned,
        F: Fn(T, T) -> T,
    {
        let signature = signature::<T, F>(Call::ReduceScatter);
        let blobs = self
            .core
            .blobs_for_me("reduce_scatter", signature, objects)?;
        combine("reduce_scatter", &blobs, f)?.ok_or_else(nobody)
    }
}

impl Core {
    /// All ranks' `object`, encoded, by rank.
    #[track_caller]
    fn blobs_of_all<T: Serialize>(
        &self,
        signature: &Signature,
        object: &T,
    ) -> Result<Vec<Vec<u8>>> {
        let blob = self.encode_or_refuse(object)?;
        let _turn = self.turn()?;
        self.all_blobs(signature, &blob)
    }

    /// What all ranks have for this one, encoded, by rank.
    #[track_caller]
    fn blobs_for_me<T: Serialize>(
        &self,
        call: &str,
        signature: Signature,
        objects: &[T],
    ) -> Result<Vec<Vec<u8>>> {
        let signature = signature.count(objects.len());
        if objects.len() != self.size {
            // All have come here with that length, or get a mismatch.
            self.barrier(&signature)?;
            let (objects, ranks) = (objects.len(), self.size);
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!("{call} of {objects} objects on {ranks} ranks"),
            ));
        }
        let rows: Result<Vec<_>> = objects.iter().map(encode).collect();
        if rows.is_err() {
            self.refuse();
        }
        self.exchange_rows(&signature, rows?)
    }
}

#[track_caller]
fn signature<T, F>(call: Call) -> Signature {
    Signature::new(call)
        .detail(number_of_function::<F>())
        .objects::<T>()
}

fn decode_of<T: DeserializeOwned>(call: &str, rank: usize, blob: &[u8]) -> Result<T> {
    decode(blob).map_err(|error| {
        error
            .context(format!("{call}: object of rank {rank}"))
            .with_peer(rank)
    })
}

/// The objects of the first ranks, in their order; None of none.
fn combine<T: DeserializeOwned>(
    call: &str,
    blobs: &[Vec<u8>],
    f: impl Fn(T, T) -> T,
) -> Result<Option<T>> {
    let mut all = None;
    for (rank, blob) in blobs.iter().enumerate() {
        let object = decode_of(call, rank, blob)?;
        all = Some(match all {
            Some(before) => f(before, object),
            None => object,
        });
    }
    Ok(all)
}

/// A team has a rank, whose object there is.
#[cold]
fn nobody() -> Error {
    Error::new(ErrorKind::Mismatch, "no rank gave an object")
}
