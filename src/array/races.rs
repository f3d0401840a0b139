//! `Checks::Races` of one array: who has reached each element last, and in which order atomic
//! operations came.
//!
//! Beside an array lies its *shadow*, an array of words. In each rank's memory it has first the
//! clocks that atomic operations on the rank's elements leave there, then *cells*, each of the last
//! accesses to one element. An access is one word, so that it is written at once: see [`Record`].
//! A rank first writes its record, then looks at the others in the cell: of two ranks that do so at
//! a time at least one sees the other.
//!
//! Shadows that are mapped are looked at element by element; those of other nodes by three
//! requests for up to [`BLOCK`] elements.

use super::modes::Mode;
use super::{ArrayIndex, Boundary, GlobalArray};
use crate::atomic::AtomicOp;
use crate::dist::{Layout, Plan, Slice};
use crate::element::Element;
use crate::error::{Error, ErrorKind, Result};
use crate::operator::Op;
use crate::world::{Asks, Checks, Core, Moment, Places, Races, Work};
use std::collections::{BTreeMap, BTreeSet};
use std::panic::Location;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

/// Elements of one look.
const BLOCK: usize = 1024;
/// Words of a cell: the last write, and reads or atomic operations.
const CELL: usize = 4;
/// Most cells of a rank.
const CELLS: usize = 1 << 15;
/// Clocks of atomic operations of a rank; those on elements so many places apart share one.
const CLOCKS: usize = 16;

/// What is done with an element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Read,
    Write,
    Atomic,
}

/// A call that reaches into an array.
#[derive(Clone, Copy, Debug)]
pub(super) struct Access {
    pub(super) call: &'static str,
    pub(super) kind: Kind,
    pub(super) site: &'static Location<'static>,
}

/// An element: the rank that holds it, and its place there.
type Spot = (usize, usize);

impl Access {
    pub(super) fn read(call: &'static str, site: &'static Location<'static>) -> Self {
        let kind = Kind::Read;
        Self { call, kind, site }
    }

    pub(super) fn write(call: &'static str, site: &'static Location<'static>) -> Self {
        let kind = Kind::Write;
        Self { call, kind, site }
    }

    pub(super) fn atomic(call: &'static str, site: &'static Location<'static>) -> Self {
        let kind = Kind::Atomic;
        Self { call, kind, site }
    }
}

/// An access in a cell: kind (2 bits; 0 for none), rank in the world (8), number of the line (10),
/// which of the elements that share the cell (16), epoch (28).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Record(u64);

const EPOCHS: u64 = 1 << 28;
const SHARERS: usize = 1 << 16;

impl Record {
    /// None for what has no place in a word: it is not looked at.
    fn new(kind: Kind, rank: usize, site: usize, sharer: usize, epoch: u64) -> Option<Self> {
        if epoch >= EPOCHS || sharer >= SHARERS {
            return None;
        }
        let kind = match kind {
            Kind::Read => 1,
            Kind::Write => 2,
            Kind::Atomic => 3,
        };
        let upper = kind << 34 | (rank as u64 & 255) << 26 | (site as u64 & 1023) << 16;
        Some(Self((upper | sharer as u64) << 28 | epoch))
    }

    fn kind(self) -> Option<Kind> {
        match self.0 >> 62 {
            0 => None,
            1 => Some(Kind::Read),
            2 => Some(Kind::Write),
            _ => Some(Kind::Atomic),
        }
    }

    fn rank(self) -> usize {
        (self.0 >> 54 & 255) as usize
    }

    fn site(self) -> usize {
        (self.0 >> 44 & 1023) as usize
    }

    fn sharer(self) -> u64 {
        self.0 >> 28 & 0xffff
    }

    fn epoch(self) -> u64 {
        self.0 & (EPOCHS - 1)
    }

    /// Whether it comes before what is done with this clock.
    fn is_before(self, clock: &[u64]) -> bool {
        clock
            .get(self.rank())
            .is_none_or(|&heard| self.epoch() <= heard)
    }

    /// Whether `other` was on the same element and nothing orders the two.
    fn races_with(self, other: Self, clock: &[u64]) -> bool {
        let (Some(mine), Some(theirs)) = (self.kind(), other.kind()) else {
            return false;
        };
        let harmless = mine == theirs && mine != Kind::Write;
        !harmless
            && self.sharer() == other.sharer()
            && self.rank() != other.rank()
            && !other.is_before(clock)
    }

    /// Whether `other` stands for this one, too: who races with this races with that.
    fn is_in(self, other: Self) -> bool {
        let same = self.rank() == other.rank()
            && self.sharer() == other.sharer()
            && self.epoch() == other.epoch();
        same && (self.kind() == other.kind() || other.kind() == Some(Kind::Write))
    }

    /// Where in the cell it goes; None if it need not, or must not.
    fn slot(self, cell: &[Self; CELL], clock: &[u64]) -> Option<usize> {
        if cell.iter().any(|&other| self.is_in(other)) {
            return None;
        }
        let old = |other: Self| other.rank() == self.rank() || other.is_before(clock);
        let same = |other: Self| other.sharer() == self.sharer();
        if self.kind() == Some(Kind::Write) && (old(cell[0]) || same(cell[0])) {
            return Some(0);
        }
        let find = |fits: &dyn Fn(Self) -> bool| (1..CELL).find(|&slot| fits(cell[slot]));
        // Who is not after this one is not after what came before it, either.
        find(&|other| other.kind().is_none())
            .or_else(|| find(&|other| old(other) && same(other) && other.kind() == self.kind()))
            .or_else(|| find(&|other| old(other)))
            // What may still race with something is kept; of one element any will do.
            .or_else(|| find(&|other| same(other)))
    }
}

/// What two ranks did.
struct Found {
    spot: Spot,
    other: Record,
}

/// The shadow of one array.
#[derive(Debug)]
pub(super) struct Shadow {
    words: GlobalArray<u64>,
    /// Words of each rank.
    row: usize,
    /// Cells of each rank; none if only the order of atomic operations is of interest.
    cells: usize,
}

impl Shadow {
    /// For an array of which a rank has at most `largest` elements. Collective.
    #[track_caller]
    pub(super) fn new(core: &Arc<Core>, races: &Races, largest: usize) -> Result<Self> {
        let cells = largest.min(CELLS);
        let row = CLOCKS * races.ranks() + CELL * cells;
        let layout = Layout::new(&Plan::of_shape([row * core.size]), core.size)
            .map_err(|reason| Error::new(ErrorKind::InvalidArgument, reason))?;
        let words = GlobalArray::allocate_alone(core, layout, [Boundary::Open], false)?;
        Ok(Self { words, row, cells })
    }

    fn races(&self) -> Option<&Races> {
        self.words.core_of().races()
    }

    /// The words of the clocks of atomic operations on these elements.
    fn clocks(&self, ranks: usize, spots: impl Iterator<Item = Spot>) -> Vec<usize> {
        let which: BTreeSet<Spot> = spots.map(|(rank, at)| (rank, at % CLOCKS)).collect();
        let starts = which
            .iter()
            .map(|&(rank, clock)| rank * self.row + clock * ranks);
        starts.flat_map(|start| start..start + ranks).collect()
    }

    /// Leaves a clock for whoever does an atomic operation on these elements later.
    fn leave(&self, races: &Races, clock: &[u64], spots: impl Iterator<Item = Spot>) -> Result<()> {
        let indices = self.clocks(races.ranks(), spots);
        let told = clock.iter().cycle().take(indices.len());
        let (indices, told): (Vec<usize>, Vec<u64>) = indices
            .into_iter()
            .zip(told)
            .filter(|(_, word)| **word > 0)
            .unzip();
        self.words.scatter_with(&indices, &told, Op::Max)
    }

    /// Hears the clocks that were left with these elements.
    fn hear(&self, races: &Races, spots: impl Iterator<Item = Spot>) -> Result<()> {
        let left = self.words.gather(&self.clocks(races.ranks(), spots))?;
        left.chunks_exact(races.ranks())
            .for_each(|clock| races.hear(clock));
        Ok(())
    }

    /// The first word of an element's cell, and which of its elements it is.
    fn cell(&self, ranks: usize, (rank, at): Spot) -> (usize, usize) {
        let start = rank * self.row + CLOCKS * ranks;
        (start + CELL * (at % self.cells), at / self.cells)
    }

    /// Notes an access to these elements, and finds another that races with it.
    fn note(
        &self,
        races: &Races,
        access: &Access,
        moment: &Moment,
        mut spots: impl Iterator<Item = Spot>,
    ) -> Result<Option<Found>> {
        let (site, ranks) = (races.number_of(access.site), races.ranks());
        loop {
            let mut far: BTreeMap<usize, Vec<Note>> = BTreeMap::new();
            let mut count = 0;
            for spot in spots.by_ref().take(BLOCK) {
                count += 1;
                let (cell, sharer) = self.cell(ranks, spot);
                let record = Record::new(access.kind, races.rank(), site, sharer, moment.epoch);
                let Some(record) = record else {
                    continue;
                };
                let note = Note { spot, cell, record };
                if self.words.memory_of(spot.0)?.is_none() {
                    far.entry(spot.0).or_default().push(note);
                } else if let Some(found) = self.note_near(note, &moment.clock)? {
                    return Ok(Some(found));
                }
            }
            for (rank, notes) in far {
                if let Some(found) = self.note_far(rank, &notes, &moment.clock)? {
                    return Ok(Some(found));
                }
            }
            if count < BLOCK {
                return Ok(None);
            }
        }
    }

    /// An element whose shadow is mapped.
    fn note_near(&self, note: Note, clock: &[u64]) -> Result<Option<Found>> {
        // Where others write to the same slot at the same time, one of them gives way.
        for _ in 0..CELL {
            let cell = self.load(note.cell)?;
            let found = note.judge(&cell, clock);
            if found.is_some() {
                return Ok(found);
            }
            let Some(slot) = note.record.slot(&cell, clock) else {
                return Ok(None);
            };
            let (at, before) = (note.cell + slot, cell[slot].0);
            if self.words.compare_exchange(at, before, note.record.0)? == before {
                break;
            }
        }
        // Written, then looked.
        fence(Ordering::SeqCst);
        Ok(note.judge(&self.load(note.cell)?, clock))
    }

    fn load(&self, cell: usize) -> Result<[Record; CELL]> {
        let mut records = [Record(0); CELL];
        for (k, record) in records.iter_mut().enumerate() {
            record.0 = self.words.get(cell + k)?;
        }
        Ok(records)
    }

    /// Elements of one rank whose shadow is not mapped.
    fn note_far(&self, rank: usize, notes: &[Note], clock: &[u64]) -> Result<Option<Found>> {
        let words: Vec<usize> = notes
            .iter()
            .flat_map(|note| note.cell..note.cell + CELL)
            .collect();
        let load = || -> Result<Vec<[Record; CELL]>> {
            let words = self.words.gather(&words)?;
            let cells = words.as_chunks::<CELL>().0.iter();
            Ok(cells.map(|cell| cell.map(Record)).collect())
        };
        let judge = |cells: &[[Record; CELL]]| {
            let mut pairs = notes.iter().zip(cells);
            pairs.find_map(|(note, cell)| note.judge(cell, clock))
        };
        let cells = load()?;
        if let Some(found) = judge(&cells) {
            return Ok(Some(found));
        }
        let slots = notes.iter().zip(&cells).filter_map(|(note, cell)| {
            let slot = note.record.slot(cell, clock)?;
            Some((*note, note.cell + slot))
        });
        let (new, places): (Vec<Note>, Vec<usize>) = slots.unzip();
        if new.is_empty() {
            return Ok(None);
        }
        let offsets: Vec<u64> = places
            .iter()
            .map(|place| (place - rank * self.row) as u64)
            .collect();
        let records: Vec<u64> = new.iter().map(|note| note.record.0).collect();
        let window = &self.words.window;
        let mut asks = Asks::new(window.core());
        // What was there meanwhile comes back.
        let swap = Work::Fetch(AtomicOp::Swap, bytemuck::cast_slice(&records));
        asks.post(rank, &window.name::<u64>(), Places::Offsets(&offsets), swap)?;
        let mut notes = new.iter();
        while let Some(answer) = asks.next()? {
            for (word, note) in answer.chunks_exact(8).zip(&mut notes) {
                let before = Record(bytemuck::pod_read_unaligned(word));
                if let Some(found) = note.judge(&[before], clock) {
                    return Ok(Some(found));
                }
            }
        }
        Ok(judge(&load()?))
    }
}

/// An access that is to be noted.
#[derive(Clone, Copy, Debug)]
struct Note {
    spot: Spot,
    cell: usize,
    record: Record,
}

impl Note {
    fn judge(&self, cell: &[Record], clock: &[u64]) -> Option<Found> {
        let mut others = cell.iter().copied();
        let other = others.find(|&other| self.record.races_with(other, clock))?;
        Some(Found {
            spot: self.spot,
            other,
        })
    }
}

impl<T: Element, const D: usize> GlobalArray<T, D> {
    /// The shadow that a new array gets, with cells if it is to be looked at as `checks` say.
    /// Collective if there is one.
    #[track_caller]
    pub(super) fn shadow(
        core: &Arc<Core>,
        layout: &Layout<D>,
        checks: Option<Checks>,
    ) -> Result<Option<Box<Shadow>>> {
        let Some(races) = core.races() else {
            return Ok(None);
        };
        let largest = match checks {
            Some(Checks::Collectives) => 0,
            Some(Checks::Races) | None => layout.largest(),
        };
        Shadow::new(core, races, largest).map(|shadow| Some(Box::new(shadow)))
    }

    /// Notes an access to one element; an error if it races with another. Only in an open array:
    /// the modes see to it that there is nothing to find.
    #[inline]
    pub(super) fn note(&self, access: Access, index: [usize; D]) -> Result<()> {
        if !self.slow {
            return Ok(());
        }
        self.note_all(access, std::iter::once(index))
    }

    /// [`GlobalArray::note`] of many elements.
    pub(super) fn note_all<I: ArrayIndex<D>>(
        &self,
        access: Access,
        indices: impl Iterator<Item = I> + Clone,
    ) -> Result<()> {
        if self.slow {
            self.count_all(access, indices.clone())?;
        }
        let Some((shadow, races)) = self.watched()? else {
            return Ok(());
        };
        let spots: Result<Vec<Spot>> = indices
            .map(|index| self.locate(access.call, index.into_array()))
            .collect();
        let moment = races.access();
        let found = shadow.note(races, &access, &moment, spots?.into_iter())?;
        self.report(races, &access, found)
    }

    /// [`GlobalArray::note`] of a section.
    pub(super) fn note_section(&self, access: Access, slices: [Slice; D]) -> Result<()> {
        self.count_section(slices);
        let Some((shadow, races)) = self.watched()? else {
            return Ok(());
        };
        let moment = races.access();
        let found = shadow.note(races, &access, &moment, self.spots(slices))?;
        self.report(races, &access, found)
    }

    /// Does an atomic operation on an element, and what goes with it: it comes after the atomic
    /// operations on the element that were before, with all that their ranks had done by then.
    pub(super) fn in_order<R>(
        &self,
        access: Access,
        index: [usize; D],
        operation: impl FnOnce() -> Result<R>,
    ) -> Result<R> {
        if !self.slow {
            return operation();
        }
        self.count_all(access, std::iter::once(index))?;
        let spot = self.locate(access.call, index)?;
        self.all_in_order(access, || std::iter::once(spot), operation)
    }

    /// [`GlobalArray::in_order`] for many elements, whose spots `spots` gives.
    pub(super) fn all_in_order<R, I: Iterator<Item = Spot>>(
        &self,
        access: Access,
        spots: impl Fn() -> I,
        operation: impl FnOnce() -> Result<R>,
    ) -> Result<R> {
        let Some((shadow, races)) = self
            .shadow
            .as_ref()
            .and_then(|shadow| Some((shadow, shadow.races()?)))
        else {
            return operation();
        };
        if self.watched()?.is_some() {
            let moment = races.telling_access();
            let found = shadow.note(races, &access, &moment, spots())?;
            self.report(races, &access, found)?;
            shadow.leave(races, &moment.clock, spots())?;
        } else {
            shadow.leave(races, &races.tell(), spots())?;
        }
        let result = operation()?;
        shadow.hear(races, spots())?;
        Ok(result)
    }

    /// The elements of a section, owner by owner.
    pub(super) fn spots(&self, slices: [Slice; D]) -> impl Iterator<Item = Spot> {
        self.layout.patches(slices).flat_map(|patch| {
            let rows: Vec<_> = patch.rows().collect();
            rows.into_iter()
                .flat_map(move |row| (0..row.count).map(move |k| (patch.rank, row.offset_of(k))))
        })
    }

    /// The shadow, if accesses are to be noted now.
    fn watched(&self) -> Result<Option<(&Shadow, &Races)>> {
        let Some(shadow) = &self.shadow else {
            return Ok(None);
        };
        // First: in a forked child locks may be held by nobody.
        self.core_of().check()?;
        let noted = shadow.cells > 0 && matches!(self.mode, Mode::Open);
        Ok(shadow
            .races()
            .filter(|_| noted)
            .map(|races| (&**shadow, races)))
    }

    #[cold]
    fn report(&self, races: &Races, access: &Access, found: Option<Found>) -> Result<()> {
        let Some(Found { spot, other }) = found else {
            return Ok(());
        };
        let core = self.core_of();
        let did = match other.kind() {
            Some(Kind::Write) => "a write",
            Some(Kind::Atomic) => "an atomic operation",
            _ => "a read",
        };
        let index = self.index_of(spot);
        let index = match D {
            1 => index[0].to_string(),
            _ => format!("{index:?}"),
        };
        let there = core.peers().rank_of(other.rank()).unwrap_or(other.rank());
        let place = races
            .site(core, other.rank(), other.site())
            .unwrap_or_else(|error| format!(" somewhere ({error})"));
        Err(Error::new(
            ErrorKind::Race,
            format!(
                "race on index {index}: {} by rank {} at {}:{} and {did} by rank {there}{place}: \
                 nothing says which is first",
                access.call,
                core.rank,
                access.site.file(),
                access.site.line(),
            ),
        )
        .with_peer(there))
    }

    /// The index of an element.
    fn index_of(&self, (rank, at): Spot) -> [usize; D] {
        let strides = self.layout.strides(rank);
        let mut rest = at;
        let place = std::array::from_fn(|d| {
            let along = rest / strides[d].max(1);
            rest %= strides[d].max(1);
            along.saturating_sub(self.layout.axis(d).halo())
        });
        self.layout.global(rank, place)
    }

    /// The element at `index`, which is no access.
    pub(crate) fn look(&self, index: [usize; D]) -> Result<T> {
        if self.shadow.is_none() {
            return self.get(index);
        }
        self.mode.check_open("wait_until")?;
        self.get_anyway("wait_until", index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Ranks;

    /// Whatever an array's size, and whatever is done with it.
    #[test]
    fn a_shadow_is_bounded() {
        Ranks::new(2).env("PGAS_CHECKS", "races").run(|world| {
            for (len, cells) in [(0, 0), (1, 1), (1001, 501), (1 << 20, 1 << 15)] {
                let array = GlobalArray::<u8>::new(world, len)?;
                let shadow = array.shadow.as_ref().unwrap();
                let bytes = 8 * shadow.words.len() / world.size();
                assert_eq!(bytes, 128 * world.size() + 32 * cells, "{len}");
            }
            let unwatched = GlobalArray::<u8>::builder(world, 1 << 20).checks(Checks::Collectives);
            let shadow = unwatched.build()?.shadow.unwrap();
            assert_eq!(8 * shadow.words.len(), 128 * world.size() * world.size());
            Ok(())
        });
        Ranks::new(1).run(|world| {
            assert!(GlobalArray::<u8>::new(world, 9)?.shadow.is_none());
            Ok(())
        });
    }

    fn record(kind: Kind, rank: usize, epoch: u64) -> Record {
        Record::new(kind, rank, 5, 3, epoch).unwrap()
    }

    #[test]
    fn a_record_has_what_it_was_made_of() {
        for kind in [Kind::Read, Kind::Write, Kind::Atomic] {
            let one = Record::new(kind, 255, 1023, SHARERS - 1, EPOCHS - 1).unwrap();
            assert_eq!(one.kind(), Some(kind));
            assert_eq!((one.rank(), one.site()), (255, 1023));
            assert_eq!((one.sharer(), one.epoch()), (0xffff, EPOCHS - 1));
            let none = Record::new(kind, 0, 0, 0, 1).unwrap();
            assert_eq!(
                (none.rank(), none.site(), none.sharer(), none.epoch()),
                (0, 0, 0, 1)
            );
        }
        assert_eq!(Record::new(Kind::Read, 0, 0, SHARERS, 1), None);
        assert_eq!(Record::new(Kind::Read, 0, 0, 0, EPOCHS), None);
    }

    #[test]
    fn what_races() {
        use Kind::{Atomic, Read, Write};
        for (mine, theirs, races) in [
            (Read, Read, false),
            (Atomic, Atomic, false),
            (Read, Write, true),
            (Write, Read, true),
            (Write, Write, true),
            (Atomic, Write, true),
            (Read, Atomic, true),
        ] {
            let (mine, theirs) = (record(mine, 0, 1), record(theirs, 1, 7));
            assert_eq!(
                mine.races_with(theirs, &[0, 6]),
                races,
                "{mine:?} {theirs:?}"
            );
            assert!(!mine.races_with(theirs, &[0, 7]), "ordered");
            assert!(
                !mine.races_with(record(Write, 0, 9), &[0, 0]),
                "the same rank"
            );
            let elsewhere = Record::new(Write, 1, 5, 2, 7).unwrap();
            assert!(!mine.races_with(elsewhere, &[0, 0]), "another element");
            assert!(!mine.races_with(Record(0), &[0, 0]));
        }
    }

    #[test]
    fn where_records_go() {
        use Kind::{Atomic, Read, Write};
        let empty = [Record(0); CELL];
        let clock = [0, 4, 0, 0, 0];
        assert_eq!(record(Write, 0, 1).slot(&empty, &clock), Some(0));
        assert_eq!(record(Read, 0, 1).slot(&empty, &clock), Some(1));
        let mut cell = empty;
        cell[1] = record(Read, 0, 1);
        assert_eq!(record(Read, 0, 1).slot(&cell, &clock), None, "is there");
        assert_eq!(record(Atomic, 0, 1).slot(&cell, &clock), Some(2));
        cell[2] = record(Read, 2, 1);
        cell[3] = record(Read, 1, 4);
        assert_eq!(
            record(Atomic, 4, 1).slot(&cell, &clock),
            Some(3),
            "is before"
        );
        cell[0] = record(Write, 0, 1);
        assert_eq!(
            record(Read, 0, 1).slot(&cell, &clock),
            None,
            "a write is more"
        );
        let other = |rank| Record::new(Write, rank, 5, 2, 9).unwrap();
        let cell = [other(1), other(2), other(3), record(Read, 3, 9)];
        assert_eq!(
            record(Write, 0, 1).slot(&cell, &clock),
            Some(3),
            "others are kept"
        );
        assert_eq!(
            record(Read, 2, 1).slot(&cell, &clock),
            Some(1),
            "its own goes"
        );
        assert_eq!(record(Read, 0, 1).slot(&[other(1); CELL], &clock), None);
    }
}
