//! Elements of ranks on other nodes, many at a time.
//!
//! Long runs of neighbours go by UCX's own get and put. All else is collected by owner and goes
//! as requests to the owners' service threads, some thousand elements to a message, with a few
//! messages under way at a time: that bounds the memory of both sides.

use crate::atomic::{AtomicElement, AtomicOp};
use crate::dist::{Patch, Row};
use crate::element::{self, Element};
use crate::error::{Error, ErrorKind, Result};
use crate::ucx::Request;
use crate::window::Window;
use crate::world::{Asks, Places, Run, Work};
use std::collections::{BTreeMap, VecDeque};

/// Dense rows from so many bytes on are transfers of their own.
const LONG: usize = 8 << 10;
/// Most elements of a request.
const MOST: usize = 8192;
/// Most runs of a request.
const RUNS: usize = 2048;
/// Bytes of values in a request.
const BYTES: usize = 64 << 10;
/// Requests whose answers are not taken yet. A multiple of what may be in flight would only cost
/// memory.
const UNDER_WAY: usize = 8;
/// One get moves at most so many bytes, and so many gets are under way at a time.
const GET_BYTES: usize = 32 << 20;
const GETS: usize = 4;
/// Memory for values that wait for a full request, over all owners.
const WAITING: usize = 16 << 20;

/// Elements that fit a request.
const fn most_of<T>() -> usize {
    let fit = BYTES / size_of::<T>();
    if fit == 0 {
        1
    } else if fit < MOST {
        fit
    } else {
        MOST
    }
}

/// An element on another node, and the number of its index among those of the call.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) rank: usize,
    pub(super) offset: usize,
    pub(super) at: usize,
}

/// Requests under way, with at most so many answers to take.
#[derive(Debug)]
struct Requests<'a> {
    window: &'a Window,
    asks: Option<Asks>,
    count: usize,
    /// Whether whoever waits for them may be forgotten.
    forgettable: bool,
}

impl<'a> Requests<'a> {
    fn new(window: &'a Window) -> Self {
        Self {
            window,
            asks: None,
            count: 0,
            forgettable: false,
        }
    }

    /// Posts one request; first waits for the oldest, whose answer `take` gets, if many are under
    /// way.
    fn post<T: Element>(
        &mut self,
        rank: usize,
        places: Places<'_>,
        work: Work<'_>,
        take: impl FnMut(Vec<u8>) -> Result<()>,
    ) -> Result<()> {
        if self.count >= UNDER_WAY {
            self.take(take)?;
        }
        let asks = self
            .asks
            .get_or_insert_with(|| Asks::new(self.window.core()));
        let posted = asks.post(rank, &self.window.name::<T>(), places, work);
        if self.forgettable {
            // After it was sent: who settles between would not wait for it.
            self.window.core().may_forget(rank);
        }
        self.count += 1;
        posted
    }

    /// Waits for the oldest answer; whether there was one.
    fn take(&mut self, mut take: impl FnMut(Vec<u8>) -> Result<()>) -> Result<bool> {
        let Some(asks) = &mut self.asks else {
            return Ok(false);
        };
        self.count = self.count.saturating_sub(1);
        match asks.next()? {
            Some(answer) => take(answer).map(|()| true),
            None => Ok(false),
        }
    }

    /// Waits for all answers, which have nothing to take.
    fn finish(&mut self) -> Result<()> {
        self.count = 0;
        self.asks.as_mut().map_or(Ok(()), Asks::finish)
    }

    fn is_done(&mut self) -> Result<bool> {
        self.asks.as_mut().map_or(Ok(true), Asks::is_done)
    }
}

/// The elements in an answer, whether they are values or not.
fn bits_of<T: Element>(answer: &[u8]) -> impl Iterator<Item = T::Bits> {
    let bytes = answer.chunks_exact(size_of::<T>());
    bytes.map(bytemuck::pod_read_unaligned::<T::Bits>)
}

fn missing() -> Error {
    Error::new(ErrorKind::Ucx, "an answer has the wrong number of elements")
}

/// Rows of one owner that wait for a full request.
#[derive(Debug, Default)]
struct Rows {
    rows: Vec<Row>,
    elements: usize,
}

impl Rows {
    /// Adds a row. Those before it are a full request, and returned, if that would have more than
    /// `most` elements with it.
    fn push(&mut self, row: Row, most: usize) -> Option<Self> {
        let too_many = self.elements > 0 && self.elements + row.count > most;
        let full = (too_many || self.rows.len() >= RUNS).then(|| std::mem::take(self));
        self.elements += row.count;
        self.rows.push(row);
        full
    }

    fn runs(&self) -> Vec<Run> {
        self.rows.iter().map(|&row| run(row)).collect()
    }

    /// Its only row, if that is one of neighbours.
    fn one_dense(&self) -> Option<Row> {
        match self.rows[..] {
            [row] if row.is_dense() => Some(row),
            _ => None,
        }
    }
}

/// Reads of rows into one buffer.
#[derive(Debug)]
pub(super) struct Reads<'a, T: Element> {
    requests: Requests<'a>,
    by_owner: BTreeMap<usize, Rows>,
    /// Where the elements of all requests go, in their order.
    places: VecDeque<Row>,
    gets: VecDeque<(Request<T>, Row)>,
}

impl<'a, T: Element> Reads<'a, T> {
    pub(super) fn new(window: &'a Window) -> Self {
        Self {
            requests: Requests::new(window),
            by_owner: BTreeMap::new(),
            places: VecDeque::new(),
            gets: VecDeque::new(),
        }
    }

    /// For reads that are finished later, or never.
    pub(super) fn forgettable(mut self) -> Self {
        self.requests.forgettable = true;
        self
    }

    /// Reads a patch to its places in `to`, by the end of [`Reads::finish`].
    pub(super) fn patch<const D: usize>(
        &mut self,
        patch: &Patch<D>,
        to: &mut [T::Bits],
    ) -> Result<()> {
        for row in patch.rows() {
            if row.is_dense() && row.count * size_of::<T>() >= LONG {
                self.get(patch.rank, row, to)?;
                continue;
            }
            for part in parts(row, most_of::<T>()) {
                let waiting = self.by_owner.entry(patch.rank).or_default();
                if let Some(full) = waiting.push(part, most_of::<T>()) {
                    self.post(patch.rank, full, to)?;
                }
            }
        }
        Ok(())
    }

    /// Reads neighbours by UCX's get.
    fn get(&mut self, rank: usize, row: Row, to: &mut [T::Bits]) -> Result<()> {
        for part in parts(row, GET_BYTES / size_of::<T>()) {
            if self.gets.len() >= GETS {
                self.take_get(to)?;
            }
            let get = self.requests.window.get_nb(rank, part.offset, part.count)?;
            if self.requests.forgettable {
                get.may_be_forgotten()?;
            }
            self.gets.push_back((get, part));
        }
        Ok(())
    }

    fn take_get(&mut self, to: &mut [T::Bits]) -> Result<()> {
        if let Some((get, row)) = self.gets.pop_front() {
            let bits = get.wait_bits()?;
            if row.at_step == 1 && bits.len() == row.count {
                to[row.at..row.at + row.count].copy_from_slice(&bits);
            } else {
                spread(to, row, bits.into_iter())?;
            }
        }
        Ok(())
    }

    fn post(&mut self, rank: usize, waiting: Rows, to: &mut [T::Bits]) -> Result<()> {
        let runs = waiting.runs();
        self.places.extend(waiting.rows);
        let places = &mut self.places;
        self.requests
            .post::<T>(rank, Places::Runs(&runs), Work::Load, |answer| {
                deliver::<T>(&answer, places, to)
            })
    }

    /// Sends what waits for a full request. For reads that are finished later.
    pub(super) fn flush(&mut self, to: &mut [T::Bits]) -> Result<()> {
        for (rank, waiting) in std::mem::take(&mut self.by_owner) {
            match waiting.one_dense() {
                // Nobody need be asked.
                Some(row) => self.get(rank, row, to)?,
                None if waiting.rows.is_empty() => {}
                None => self.post(rank, waiting, to)?,
            }
        }
        Ok(())
    }

    /// Waits until all is read.
    pub(super) fn finish(mut self, to: &mut [T::Bits]) -> Result<()> {
        self.flush(to)?;
        let places = &mut self.places;
        while self
            .requests
            .take(|answer| deliver::<T>(&answer, places, to))?
        {}
        if !self.places.is_empty() {
            return Err(missing());
        }
        while !self.gets.is_empty() {
            self.take_get(to)?;
        }
        Ok(())
    }

    /// Whether [`Reads::finish`] would not wait.
    pub(super) fn is_done(&mut self) -> Result<bool> {
        for (get, _) in &self.gets {
            if !get.is_done()? {
                return Ok(false);
            }
        }
        self.requests.is_done()
    }
}

/// Puts the elements of the next answer to the first of `places`.
fn deliver<T: Element>(
    answer: &[u8],
    places: &mut VecDeque<Row>,
    to: &mut [T::Bits],
) -> Result<()> {
    let mut bits = bits_of::<T>(answer).peekable();
    while bits.peek().is_some() {
        let row = places.pop_front().ok_or_else(missing)?;
        spread(to, row, bits.by_ref().take(row.count))?;
    }
    Ok(())
}

/// Puts values to a row's places.
fn spread<B>(to: &mut [B], row: Row, values: impl Iterator<Item = B>) -> Result<()> {
    let mut given = 0;
    for value in values {
        to[row.at + given * row.at_step] = value;
        given += 1;
    }
    if given == row.count {
        Ok(())
    } else {
        Err(missing())
    }
}

/// A row in pieces of at most so many elements, or of one.
fn parts(row: Row, most: usize) -> impl Iterator<Item = Row> {
    let most = most.max(1);
    (0..row.count).step_by(most).map(move |k| Row {
        offset: row.offset_of(k),
        count: most.min(row.count - k),
        at: row.at_of(k),
        ..row
    })
}

fn run(row: Row) -> Run {
    Run {
        start: row.offset as u64,
        step: row.step as i64,
        count: row.count as u64,
    }
}

/// Writes of rows.
#[derive(Debug)]
pub(super) struct Writes<'a, T> {
    requests: Requests<'a>,
    by_owner: BTreeMap<usize, Rows>,
    /// All values, where rows say.
    from: &'a [T],
}

impl<'a, T: Element> Writes<'a, T> {
    pub(super) fn new(window: &'a Window, from: &'a [T]) -> Self {
        Self {
            requests: Requests::new(window),
            by_owner: BTreeMap::new(),
            from,
        }
    }

    /// Writes a patch.
    pub(super) fn patch<const D: usize>(&mut self, patch: &Patch<D>) -> Result<()> {
        for row in patch.rows() {
            if row.is_dense() && row.count * size_of::<T>() >= LONG {
                self.put(patch.rank, row)?;
                continue;
            }
            for part in parts(row, most_of::<T>()) {
                let waiting = self.by_owner.entry(patch.rank).or_default();
                if let Some(full) = waiting.push(part, most_of::<T>()) {
                    self.post(patch.rank, &full)?;
                }
            }
        }
        Ok(())
    }

    fn values(&self, row: Row) -> impl Iterator<Item = T> + use<'a, T> {
        let values = self.from[row.at..].iter().step_by(row.at_step.max(1));
        values.take(row.count).copied()
    }

    /// Writes neighbours by UCX's put.
    fn put(&self, rank: usize, row: Row) -> Result<()> {
        if row.at_step == 1 || row.count == 1 {
            let from = &self.from[row.at..row.at + row.count];
            return self.requests.window.put_range(rank, row.offset, from);
        }
        for part in parts(row, GET_BYTES / size_of::<T>()) {
            let values: Vec<T> = self.values(part).collect();
            self.requests.window.put_range(rank, part.offset, &values)?;
        }
        Ok(())
    }

    fn post(&mut self, rank: usize, waiting: &Rows) -> Result<()> {
        let values: Vec<T> = waiting
            .rows
            .iter()
            .flat_map(|&row| self.values(row))
            .collect();
        let work = Work::Store(bytemuck::cast_slice(&values));
        self.requests
            .post::<T>(rank, Places::Runs(&waiting.runs()), work, |_| Ok(()))
    }

    /// Waits until all requests are carried out; what went by puts may still be on its way.
    pub(super) fn finish(mut self) -> Result<()> {
        for (rank, waiting) in std::mem::take(&mut self.by_owner) {
            match waiting.one_dense() {
                // Nobody need be asked.
                Some(row) => self.put(rank, row)?,
                None if waiting.rows.is_empty() => {}
                None => self.post(rank, &waiting)?,
            }
        }
        self.requests.finish()
    }
}

/// Reads of single elements.
#[derive(Debug)]
pub(super) struct Gathers<'a> {
    requests: Requests<'a>,
    /// Where elements belong, in the order of the requests, and how many have been posted and
    /// taken.
    places: Vec<Place>,
    posted: usize,
    taken: usize,
}

impl<'a> Gathers<'a> {
    /// Reads of all `places`.
    pub(super) fn new(window: &'a Window, mut places: Vec<Place>) -> Self {
        // By owner, and by address: the owner's memory is read in order.
        places.sort_unstable_by_key(|place| (place.rank, place.offset));
        Self {
            requests: Requests::new(window),
            places,
            posted: 0,
            taken: 0,
        }
    }

    /// For reads that are finished later, or never.
    pub(super) fn forgettable(mut self) -> Self {
        self.requests.forgettable = true;
        self
    }

    /// Posts the next request.
    fn post<T: Element>(&mut self, put: &mut impl FnMut(usize, T)) -> Result<()> {
        let rest = &self.places[self.posted..];
        let Some(rank) = rest.first().map(|place| place.rank) else {
            return Ok(());
        };
        let same = rest.iter().take(most_of::<T>());
        let offsets: Vec<u64> = same
            .take_while(|place| place.rank == rank)
            .map(|place| place.offset as u64)
            .collect();
        let (places, taken) = (&self.places, &mut self.taken);
        self.requests
            .post::<T>(rank, Places::Offsets(&offsets), Work::Load, |answer| {
                hand_out(&answer, places, taken, put)
            })?;
        self.posted += offsets.len();
        Ok(())
    }

    /// Goes on as far as is possible without waiting; whether all has been read. `put` gets each
    /// number and its element.
    pub(super) fn go_on<T: Element>(&mut self, mut put: impl FnMut(usize, T)) -> Result<bool> {
        while self.requests.is_done()? {
            let (places, taken) = (&self.places, &mut self.taken);
            let mut take = |answer: Vec<u8>| hand_out(&answer, places, taken, &mut put);
            while self.requests.take(&mut take)? {}
            if self.posted == self.places.len() {
                return Ok(true);
            }
            for _ in 0..UNDER_WAY {
                self.post(&mut put)?;
            }
        }
        Ok(false)
    }

    /// Reads all that is not read yet. `put` gets each number and its element.
    pub(super) fn finish<T: Element>(mut self, mut put: impl FnMut(usize, T)) -> Result<()> {
        while self.posted < self.places.len() {
            self.post(&mut put)?;
        }
        let (places, taken) = (&self.places, &mut self.taken);
        let mut take = |answer: Vec<u8>| hand_out(&answer, places, taken, &mut put);
        while self.requests.take(&mut take)? {}
        if self.taken == self.places.len() {
            Ok(())
        } else {
            Err(missing())
        }
    }
}

fn hand_out<T: Element>(
    answer: &[u8],
    places: &[Place],
    taken: &mut usize,
    put: &mut impl FnMut(usize, T),
) -> Result<()> {
    for bits in bits_of::<T>(answer) {
        let place = places.get(*taken).ok_or_else(missing)?;
        put(place.at, element::from_bits(bits)?);
        *taken += 1;
    }
    Ok(())
}

/// Writes of single elements.
pub(super) struct Scatters;

impl Scatters {
    /// Writes `values[place.at]` to each place; the last value for a place is the one that stays.
    pub(super) fn run<T: Element>(
        window: &Window,
        mut places: Vec<Place>,
        values: &[T],
    ) -> Result<()> {
        // In the order of the call for each element: an owner's requests are carried out in order.
        places.sort_unstable_by_key(|place| (place.rank, place.at));
        let mut requests = Requests::new(window);
        for run in places.chunk_by(|a, b| a.rank == b.rank) {
            for piece in run.chunks(most_of::<T>()) {
                let offsets: Vec<u64> = piece.iter().map(|place| place.offset as u64).collect();
                let values: Vec<T> = piece.iter().map(|place| values[place.at]).collect();
                let work = Work::Store(bytemuck::cast_slice(&values));
                requests.post::<T>(run[0].rank, Places::Offsets(&offsets), work, |_| Ok(()))?;
            }
        }
        requests.finish()
    }
}

/// Values to combine into elements, collected by owner.
#[derive(Debug)]
pub(super) struct Applies<'a, T> {
    requests: Requests<'a>,
    op: AtomicOp,
    /// By rank; empty until there is one.
    by_owner: Vec<Option<Box<Waiting<T>>>>,
    /// Values of an owner that make a full request.
    full: usize,
}

/// What waits for a full request.
#[derive(Debug)]
struct Waiting<T> {
    offsets: Vec<u64>,
    values: Vec<T>,
}

impl<'a, T: AtomicElement> Applies<'a, T> {
    pub(super) fn new(window: &'a Window, op: AtomicOp) -> Self {
        let each = window.core().size * (size_of::<u64>() + size_of::<T>());
        Self {
            requests: Requests::new(window),
            op,
            by_owner: Vec::new(),
            full: (WAITING / each).clamp(64, most_of::<T>()),
        }
    }

    pub(super) fn push(&mut self, rank: usize, offset: usize, value: T) -> Result<()> {
        if self.by_owner.is_empty() {
            let ranks = self.requests.window.core().size;
            self.by_owner.resize_with(ranks, || None);
        }
        let full = self.full;
        let waiting = self.by_owner[rank].get_or_insert_with(|| {
            Box::new(Waiting {
                offsets: Vec::with_capacity(full),
                values: Vec::with_capacity(full),
            })
        });
        waiting.offsets.push(offset as u64);
        waiting.values.push(value);
        if waiting.values.len() < self.full {
            return Ok(());
        }
        let sent = send(&mut self.requests, self.op, rank, waiting);
        waiting.offsets.clear();
        waiting.values.clear();
        sent
    }

    /// Combines a row from its places in `from`.
    pub(super) fn row(&mut self, rank: usize, row: Row, from: &[T]) -> Result<()> {
        for k in 0..row.count {
            self.push(rank, row.offset_of(k), from[row.at_of(k)])?;
        }
        Ok(())
    }

    /// Waits until all values are in their elements.
    pub(super) fn finish(&mut self) -> Result<()> {
        for (rank, waiting) in std::mem::take(&mut self.by_owner).into_iter().enumerate() {
            if let Some(waiting) = waiting.filter(|waiting| !waiting.values.is_empty()) {
                send(&mut self.requests, self.op, rank, &waiting)?;
            }
        }
        self.requests.finish()
    }
}

fn send<T: AtomicElement>(
    requests: &mut Requests<'_>,
    op: AtomicOp,
    rank: usize,
    waiting: &Waiting<T>,
) -> Result<()> {
    let work = Work::Apply(op, bytemuck::cast_slice(&waiting.values));
    requests.post::<T>(rank, Places::Offsets(&waiting.offsets), work, |_| Ok(()))
}
