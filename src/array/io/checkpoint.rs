//! Checkpoints: files that know whether they are whole, for any number of ranks.
//!
//! ```text
//! 8 bytes    PGASCKPT
//! 4 bytes    length of the head, little endian
//! 4 bytes    CRC-32C of the head
//! head       what is in it (Head, by the codec)
//! from 4096  elements in C order
//! then       for each piece: its elements and its CRC-32C, 8 and 4 bytes
//! 4 bytes    CRC-32C of those
//! ```

use super::{NewFile, Order, PIECE, Transfer, agree, failed, runs};
use crate::array::{GlobalArray, ReadView};
use crate::dist::block_start;
use crate::element::{self, Element};
use crate::error::{Error, ErrorKind, Result};
use crate::world::Team;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

pub(super) const MAGIC: &[u8; 8] = b"PGASCKPT";
/// Where the elements begin: the head has a type's name in it and is shorter.
const DATA: u64 = 4096;
/// Bytes of an entry of the table of pieces.
const ENTRY: usize = 12;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Head {
    version: u32,
    /// Name and size of the element type.
    element: String,
    size: u64,
    little_endian: bool,
    shape: Vec<u64>,
    /// Pieces of the table at the end.
    pieces: u64,
}

/// A piece of the file: elements, and the checksum of their bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Piece {
    count: u64,
    checksum: u32,
}

impl<T: Element, const D: usize> GlobalArray<T, D> {
    /// Writes the array to a checkpoint: a file with checksums, for [`GlobalArray::restore`] on any
    /// number of ranks. What was at `path` is replaced when all is written and on the disk: there is
    /// always a whole one.
    ///
    /// Collective, and a [barrier](Team::barrier) at the beginning and the end. Each rank writes its own
    /// elements if those are whole rows, or some of one row; else the ranks write equal shares, which
    /// they read from whoever has them, 8 MiB at a time.
    ///
    /// # Errors
    /// As [`GlobalArray::save_raw`].
    #[track_caller]
    pub fn checkpoint(&mut self, path: impl AsRef<Path>) -> Result<()> {
        self.checkpoint_with(path, &Transfer::new())
    }

    /// As [`GlobalArray::checkpoint`], with a word on the progress. The order is C's.
    ///
    /// # Errors
    /// As [`GlobalArray::checkpoint`].
    #[track_caller]
    pub fn checkpoint_with(&mut self, path: impl AsRef<Path>, transfer: &Transfer) -> Result<()> {
        let (team, path) = (self.team(), path.as_ref());
        let shape = self.shape().map(|len| len as u64).to_vec();
        let view = self.read()?;
        let share = Share::new(&view, &team);
        let step = (PIECE / size_of::<T>()).max(1);
        let shares = team.all_gather([share.range.start, share.range.len()])?;
        let pieces: usize = shares.iter().map(|[_, len]| len.div_ceil(step)).sum();
        let head = Head {
            version: 1,
            element: std::any::type_name::<T>().into(),
            size: size_of::<T>() as u64,
            little_endian: cfg!(target_endian = "little"),
            shape,
            pieces: pieces as u64,
        };
        let head = head.bytes()?;
        let data = view.global_len() as u64 * size_of::<T>() as u64;
        let end = (pieces * ENTRY + 4) as u64;
        let file = NewFile::create(&team, path, &head, DATA + data + end)?;
        let written = share.write((&file.file, &file.other), step, transfer);
        let all = team.all_gather_ragged(&table(&agree(&team, written)?))?;
        let mut written = Ok(());
        if team.rank() == 0 {
            // By the place of their elements: ranks need not hold them in the order of ranks.
            let mut by_place: Vec<usize> = (0..team.size()).collect();
            by_place.sort_by_key(|&rank| shares[rank]);
            let mut end: Vec<u8> = by_place
                .iter()
                .flat_map(|&rank| &all[rank])
                .copied()
                .collect();
            end.extend_from_slice(&crc32c::crc32c(&end).to_le_bytes());
            let place = DATA + data;
            written = file
                .file
                .write_all_at(&end, place)
                .map_err(|error| failed("writing", path, &error));
        }
        file.finish(written)?;
        view.close()
    }

    /// The array of a checkpoint, in blocks. Every checksum is compared.
    ///
    /// Collective. Each rank reads an equal share, for which it needs room beside the array, before any
    /// element is written.
    ///
    /// # Errors
    /// On all ranks: [`ErrorKind::Io`] if one cannot read, or if it is no checkpoint, or a damaged one;
    /// [`ErrorKind::InvalidArgument`] if it has another type or number of dimensions;
    /// [`ErrorKind::InvalidValue`] if bytes are no `T`; else as [`GlobalArray::new`].
    #[track_caller]
    pub fn restore(world: &Team, path: impl AsRef<Path>) -> Result<Self> {
        Self::restore_with(world, path, &Transfer::new())
    }

    /// As [`GlobalArray::restore`], with a word on the progress.
    ///
    /// # Errors
    /// As [`GlobalArray::restore`].
    #[track_caller]
    pub fn restore_with(world: &Team, path: impl AsRef<Path>, transfer: &Transfer) -> Result<Self> {
        let path = path.as_ref();
        let found = Found::read::<T>(world, path, D)?;
        let shape: [usize; D] = found.shape.as_slice().try_into().unwrap_or([0; D]);
        let mut array: Self = Self::builder(world, shape).allocate()?;
        array.restore_from(path, &found, transfer)?;
        Ok(array)
    }

    /// Fills the array, which may have any distribution, with that of a checkpoint, which has its
    /// shape. Else as [`GlobalArray::restore`].
    ///
    /// # Errors
    /// As [`GlobalArray::restore`]; [`ErrorKind::InvalidArgument`] on all ranks if the shapes differ.
    #[track_caller]
    pub fn read_checkpoint(&mut self, path: impl AsRef<Path>) -> Result<()> {
        self.read_checkpoint_with(path, &Transfer::new())
    }

    /// As [`GlobalArray::read_checkpoint`], with a word on the progress.
    ///
    /// # Errors
    /// As [`GlobalArray::read_checkpoint`].
    #[track_caller]
    pub fn read_checkpoint_with(
        &mut self,
        path: impl AsRef<Path>,
        transfer: &Transfer,
    ) -> Result<()> {
        let path = path.as_ref();
        let found = Found::read::<T>(&self.team(), path, D)?;
        if found.shape != self.shape() {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!(
                    "{} has an array of {:?}, not {:?}",
                    path.display(),
                    found.shape,
                    self.shape()
                ),
            ));
        }
        self.restore_from(path, &found, transfer)
    }

    #[track_caller]
    fn restore_from(&mut self, path: &Path, found: &Found, transfer: &Transfer) -> Result<()> {
        let team = self.team();
        // Whole pieces to each rank, about as many elements to each; from there to where they belong.
        let ends: Vec<u64> = found
            .pieces
            .iter()
            .scan(0, |end, piece| {
                *end += piece.count;
                Some(*end)
            })
            .collect();
        let total = self.len() as u64;
        let border = |rank: usize| {
            let end = u128::from(total) * rank as u128 / team.size() as u128;
            ends.partition_point(|&it| u128::from(it) <= end)
        };
        let last = team.rank() + 1 == team.size();
        let mine = border(team.rank())..if last {
            ends.len()
        } else {
            border(team.rank() + 1)
        };
        let first = if mine.start == 0 {
            0
        } else {
            ends[mine.start - 1]
        };
        let read = read_pieces::<T>(path, first, &found.pieces[mine], transfer);
        let values = agree(&team, read)?;
        let start = usize::try_from(first).unwrap_or(usize::MAX);
        self.scatter_flat("read_checkpoint", start, &values)
    }
}

/// What a rank writes: elements that follow each other in the file.
struct Share<'a, T: Element, const D: usize> {
    view: &'a ReadView<'a, T, D>,
    range: Range<usize>,
    /// Where they are in its own memory; None if they are read from whoever has them.
    memory: Option<usize>,
}

impl<'a, T: Element, const D: usize> Share<'a, T, D> {
    /// Its own elements, if those of each rank are one run; else equal shares.
    fn new(view: &'a ReadView<'a, T, D>, team: &Team) -> Self {
        let runs_of = |rank| runs(&view.array.layout, rank, Order::C);
        let one = |rank| runs_of(rank).is_some_and(|runs| runs.len() <= 1);
        if (0..team.size()).all(one) {
            let run = runs_of(team.rank()).and_then(|runs| runs.first().copied());
            let (first, count) = run.map_or((0, 0), |run| (run.file, run.count));
            let first = usize::try_from(first).unwrap_or(usize::MAX);
            return Self {
                view,
                range: first..first + count,
                memory: Some(run.map_or(0, |run| run.memory)),
            };
        }
        let start = |rank| block_start(view.global_len(), team.size(), rank);
        Self {
            view,
            range: start(team.rank())..start(team.rank() + 1),
            memory: None,
        }
    }

    /// Writes it in pieces of `step` elements.
    fn write(
        &self,
        (file, path): (&File, &Path),
        step: usize,
        transfer: &Transfer,
    ) -> Result<Vec<Piece>> {
        let size = size_of::<T>() as u64;
        let total = self.range.len() as u64 * size;
        let mut pieces = Vec::with_capacity(self.range.len().div_ceil(step));
        transfer.tell(0, total);
        for start in self.range.clone().step_by(step) {
            let range = start..self.range.end.min(start + step);
            let done = (range.end - self.range.start) as u64;
            let elements = self.elements(range)?;
            let bytes: &[u8] = bytemuck::cast_slice(&elements);
            pieces.push(Piece {
                count: elements.len() as u64,
                checksum: crc32c::crc32c(bytes),
            });
            file.write_all_at(bytes, DATA + start as u64 * size)
                .map_err(|error| failed("writing", path, &error))?;
            transfer.tell(done * size, total);
        }
        Ok(pieces)
    }

    fn elements(&self, range: Range<usize>) -> Result<Cow<'_, [T]>> {
        let Some(memory) = self.memory else {
            return self.view.flat_range(range).map(Cow::Owned);
        };
        let at = memory + range.start - self.range.start;
        Ok(Cow::Borrowed(&self.view[at..at + range.len()]))
    }
}

/// Reads pieces from element `first` on, and compares their checksums.
fn read_pieces<T: Element>(
    path: &Path,
    first: u64,
    pieces: &[Piece],
    transfer: &Transfer,
) -> Result<Vec<T>> {
    let file = File::open(path).map_err(|error| failed("reading", path, &error))?;
    let size = size_of::<T>() as u64;
    let total: u64 = pieces.iter().map(|piece| piece.count * size).sum();
    let mut at = DATA + first * size;
    let mut values = element::Arriving::<T>::with_bytes(usize::try_from(total).unwrap_or(0));
    let (mut done, mut bytes) = (0, Vec::new());
    transfer.tell(0, total);
    for piece in pieces {
        let len = usize::try_from(piece.count * size).unwrap_or(usize::MAX);
        bytes.resize(len, 0);
        file.read_exact_at(&mut bytes, at)
            .map_err(|error| failed("reading", path, &error))?;
        if crc32c::crc32c(&bytes) != piece.checksum {
            return Err(Error::new(
                ErrorKind::Io,
                format!(
                    "{}: bytes {at} to {} are damaged",
                    path.display(),
                    at + len as u64
                ),
            ));
        }
        values.write(done, &bytes);
        done += len;
        at += len as u64;
        transfer.tell(done as u64, total);
    }
    values.into_values()
}

fn table(pieces: &[Piece]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(pieces.len() * ENTRY);
    for piece in pieces {
        bytes.extend_from_slice(&piece.count.to_le_bytes());
        bytes.extend_from_slice(&piece.checksum.to_le_bytes());
    }
    bytes
}

impl Head {
    #[cfg(test)]
    pub(super) fn example() -> Self {
        Self {
            version: 1,
            element: "f64".to_owned(),
            size: 8,
            little_endian: true,
            shape: vec![300, 70_000],
            pieces: 9,
        }
    }

    /// What the file begins with.
    pub(super) fn bytes(&self) -> Result<Vec<u8>> {
        let invalid = |text: String| Error::new(ErrorKind::InvalidArgument, text);
        let head = ucxrun::codec::encode(self).map_err(|error| invalid(error.to_string()))?;
        let mut bytes = MAGIC.to_vec();
        bytes.extend_from_slice(&u32::try_from(head.len()).unwrap_or(u32::MAX).to_le_bytes());
        bytes.extend_from_slice(&crc32c::crc32c(&head).to_le_bytes());
        bytes.extend_from_slice(&head);
        if bytes.len() as u64 > DATA {
            return Err(invalid(format!(
                "the type's name is too long: {}",
                self.element
            )));
        }
        Ok(bytes)
    }

    pub(super) fn parse(bytes: &[u8]) -> Result<Self, &'static str> {
        let rest = bytes
            .strip_prefix(MAGIC)
            .ok_or("it does not begin as one")?;
        let short = "it is cut short";
        let (len, rest) = rest.split_first_chunk::<4>().ok_or(short)?;
        let (checksum, rest) = rest.split_first_chunk::<4>().ok_or(short)?;
        let len = usize::try_from(u32::from_le_bytes(*len)).unwrap_or(usize::MAX);
        let head = rest.get(..len).ok_or(short)?;
        if crc32c::crc32c(head) != u32::from_le_bytes(*checksum) {
            return Err("its head is damaged");
        }
        let head: Self =
            ucxrun::codec::decode(head, head.len()).map_err(|_| "its head makes no sense")?;
        match head.version {
            1 => Ok(head),
            _ => Err("it is of a later version"),
        }
    }
}

/// What is in a checkpoint.
#[derive(Clone, Debug)]
struct Found {
    shape: Vec<usize>,
    pieces: Vec<Piece>,
}

impl Found {
    /// Collective.
    #[track_caller]
    fn read<T: Element>(team: &Team, path: &Path, dimensions: usize) -> Result<Self> {
        let mine = match team.rank() {
            0 => Self::read_here::<T>(path, dimensions).map(Some),
            _ => Ok(None),
        };
        let mine = agree(team, mine)?;
        let mine = mine.map(|found| (found.shape, table(&found.pieces)));
        let (shape, table): (Vec<usize>, Vec<u8>) = team.broadcast_obj(0, mine.as_ref())?;
        Ok(Self {
            shape,
            pieces: pieces_of(&table),
        })
    }

    fn read_here<T: Element>(path: &Path, dimensions: usize) -> Result<Self> {
        let io = |error: io::Error| failed("reading", path, &error);
        let wrong = |reason: &str| {
            let text = format!(
                "{} is no checkpoint that can be read: {reason}",
                path.display()
            );
            Error::new(ErrorKind::Io, text)
        };
        let file = File::open(path).map_err(io)?;
        let len = file.metadata().map_err(io)?.len();
        if len < DATA {
            return Err(wrong("it is cut short"));
        }
        let mut start = vec![0; 4096];
        file.read_exact_at(&mut start, 0).map_err(io)?;
        let head = Head::parse(&start).map_err(wrong)?;
        let other = |what: String| {
            let text = format!("{} has {what}", path.display());
            Err(Error::new(ErrorKind::InvalidArgument, text))
        };
        let (name, size) = (std::any::type_name::<T>(), size_of::<T>() as u64);
        if (head.element.as_str(), head.size) != (name, size) {
            return other(format!(
                "elements of type {} ({} bytes), not {name} ({size} bytes)",
                head.element, head.size
            ));
        }
        if head.little_endian != cfg!(target_endian = "little") {
            return other("numbers in the byte order of another processor".into());
        }
        if head.shape.len() != dimensions {
            return other(format!(
                "an array of {} dimensions, not {dimensions}",
                head.shape.len()
            ));
        }
        let sense = "its numbers make no sense";
        let count = head
            .shape
            .iter()
            .try_fold(1_u64, |all, &len| all.checked_mul(len));
        let data = count
            .and_then(|count| count.checked_mul(size))
            .ok_or(wrong(sense))?;
        let table_len = head.pieces.checked_mul(ENTRY as u64).ok_or(wrong(sense))?;
        let whole = (DATA + 4)
            .checked_add(data)
            .and_then(|len| len.checked_add(table_len));
        if whole != Some(len) {
            return Err(wrong(
                "its length is not what it says: it is cut short or goes on",
            ));
        }
        let mut table = vec![0; usize::try_from(table_len + 4).unwrap_or(0)];
        file.read_exact_at(&mut table, DATA + data).map_err(io)?;
        let Some((table, checksum)) = table.split_last_chunk::<4>() else {
            return Err(wrong(sense));
        };
        if crc32c::crc32c(table) != u32::from_le_bytes(*checksum) {
            return Err(wrong("its table of checksums is damaged"));
        }
        let pieces = pieces_of(table);
        let total = pieces
            .iter()
            .try_fold(0_u64, |all, piece| all.checked_add(piece.count));
        if total != count {
            return Err(wrong(sense));
        }
        let shape = head
            .shape
            .iter()
            .map(|&len| usize::try_from(len).unwrap_or(usize::MAX));
        Ok(Self {
            shape: shape.collect(),
            pieces,
        })
    }
}

fn pieces_of(table: &[u8]) -> Vec<Piece> {
    let piece = |entry: &[u8; ENTRY]| {
        let (count, checksum) = entry.split_at(8);
        Piece {
            count: count.try_into().map_or(0, u64::from_le_bytes),
            checksum: checksum.try_into().map_or(0, u32::from_le_bytes),
        }
    };
    table.as_chunks::<ENTRY>().0.iter().map(piece).collect()
}
