//! This rank's threads for work on its own elements: as many as it has [cores] for itself, so that
//! all ranks of a machine together do not use more than there are.

use crate::cores;
use crate::error::{Error, ErrorKind, Result};
use rayon::prelude::*;
use std::sync::OnceLock;

/// Elements of a piece of work. The same whatever the number of threads, so that what is
/// combined piece by piece has the same bits.
pub(crate) const PIECE: usize = 32 << 10;

/// The threads of this process.
pub(crate) struct Threads {
    /// None for one thread, the caller's.
    pool: Option<rayon::ThreadPool>,
}

/// The threads of this rank, started at the first call: as many as `PGAS_THREADS` says, or as it
/// has cores.
///
/// # Errors
/// [`ErrorKind::InvalidArgument`] if `PGAS_THREADS` is no such number; [`ErrorKind::NoRoom`] if
/// they cannot be started.
pub(crate) fn of_this_rank() -> Result<&'static Threads> {
    static THREADS: OnceLock<Result<Threads>> = OnceLock::new();
    let threads = THREADS.get_or_init(Threads::start);
    threads.as_ref().map_err(Clone::clone)
}

impl Threads {
    fn start() -> Result<Self> {
        let count = match std::env::var("PGAS_THREADS") {
            Ok(text) => match text.trim().parse() {
                Ok(count @ 1..=4096) => count,
                _ => {
                    return Err(Error::new(
                        ErrorKind::InvalidArgument,
                        format!("PGAS_THREADS is {text:?}, not a number from 1 to 4096"),
                    ));
                }
            },
            Err(_) => cores::own(),
        };
        if count <= 1 {
            return Ok(Self { pool: None });
        }
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(count)
            .thread_name(|number| format!("pgas-work-{number}"))
            .build()
            .map_err(|error| Error::new(ErrorKind::NoRoom, format!("{count} threads: {error}")))?;
        Ok(Self { pool: Some(pool) })
    }

    /// Where rayon's operations use these threads; None for one thread, the caller's.
    pub(crate) fn pool(&self) -> Option<&rayon::ThreadPool> {
        self.pool.as_ref()
    }

    /// Calls `work` for pieces of all rows.
    pub(crate) fn each<T: Send>(&self, rows: Vec<&mut [T]>, work: impl Fn(&mut [T]) + Sync + Send) {
        let Some(pool) = &self.pool else {
            return rows.into_iter().for_each(work);
        };
        pool.install(|| {
            rows.into_par_iter()
                .flat_map(|row| row.par_chunks_mut(PIECE))
                .for_each(work);
        });
    }

    /// Calls `work` for each item.
    pub(crate) fn each_item<I: Send>(&self, items: Vec<I>, work: impl Fn(I) + Sync + Send) {
        match &self.pool {
            None => items.into_iter().for_each(work),
            Some(pool) => pool.install(|| items.into_par_iter().for_each(work)),
        }
    }

    /// Calls `work` for pieces of pairs of rows of equal lengths.
    pub(crate) fn each_pair<T: Send, U: Sync>(
        &self,
        rows: Vec<&mut [T]>,
        others: Vec<&[U]>,
        work: impl Fn(&mut [T], &[U]) + Sync + Send,
    ) {
        let pairs = rows.into_iter().zip(others);
        let Some(pool) = &self.pool else {
            return pairs.for_each(|(row, other)| work(row, other));
        };
        let pairs: Vec<_> = pairs.collect();
        pool.install(|| {
            pairs
                .into_par_iter()
                .flat_map(|(row, other)| row.par_chunks_mut(PIECE).zip(other.par_chunks(PIECE)))
                .for_each(|(row, other)| work(row, other));
        });
    }

    /// What `work` makes of each piece of the rows, in their order.
    pub(crate) fn pieces<T: Sync, R: Send>(
        &self,
        rows: &[&[T]],
        work: impl Fn(&[T]) -> R + Sync + Send,
    ) -> Vec<R> {
        let Some(pool) = &self.pool else {
            let pieces = rows.iter().flat_map(|row| row.chunks(PIECE));
            return pieces.map(work).collect();
        };
        pool.install(|| {
            let pieces = rows.par_iter().flat_map(|row| row.par_chunks(PIECE));
            pieces.map(work).collect()
        })
    }

    /// As [`Threads::pieces`], of pairs of rows of equal lengths.
    pub(crate) fn pair_pieces<T: Sync, U: Sync, R: Send>(
        &self,
        rows: &[&[T]],
        others: &[&[U]],
        work: impl Fn(&[T], &[U]) -> R + Sync + Send,
    ) -> Vec<R> {
        let pairs: Vec<(&[T], &[U])> = rows
            .iter()
            .zip(others)
            .flat_map(|(row, other)| row.chunks(PIECE).zip(other.chunks(PIECE)))
            .collect();
        let Some(pool) = &self.pool else {
            return pairs.iter().map(|(row, other)| work(row, other)).collect();
        };
        pool.install(|| {
            let pairs = pairs.par_iter();
            pairs.map(|(row, other)| work(row, other)).collect()
        })
    }
}
