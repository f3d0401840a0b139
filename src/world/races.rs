//! What a rank knows for [`Checks::Races`]: what of the others' doings comes before its own, and
//! from which lines of the program it reaches into arrays.
//!
//! Time is a *vector clock*: for each rank of the world the last of its *epochs* that this rank
//! has heard the end of. A rank ends its epoch when it tells another rank something (a collective,
//! a message, an atomic operation), if it has reached into an array since it began. An access in
//! epoch `e` of rank `r` comes before what this rank does now if its clock has `e` or more for `r`.
//!
//! Clocks travel with what makes the order: collectives gather them ([`Engine`](super::Engine)),
//! messages end with them, and atomic operations leave them beside the array (`array/races.rs`).
//! Each rank's *board*, memory that all can read, has what else others may want to know: its clock
//! as it is now, and the lines of the program by number.

#![expect(unsafe_code, reason = "stores to the own board")]

use super::segment::{Memory, Segment, meet};
use super::signature::Place;
use super::{Call, Core};
use crate::element;
use crate::error::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::panic::Location;
use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// What a job looks for beside doing what it is told: [`Team::checks`](crate::Team::checks), set
/// by the environment variable `PGAS_CHECKS`, which must be the same on all ranks.
///
/// # Races
/// With `PGAS_CHECKS=races`, two ranks that reach the same element of an open array, at least one
/// of them writing, with nothing that says which is first, are an error of the second:
/// [`ErrorKind::Race`]. Its message names index, both ranks, what each did and the lines of the
/// program. The access that gets the error is not made. Atomic operations do not race with each
/// other; one and a plain get or put do.
///
/// What says which is first: collectives, of any team; messages; modes; [`Signals`](crate::Signals),
/// [`GlobalMutex`](crate::GlobalMutex) and [`Counter`](crate::Counter); atomic operations, for
/// those that later do one on the same element; and
/// [`wait_until`](crate::GlobalArray::wait_until), whose own reading is no race.
///
/// A race that is reported is one, unless ranks agree by means that this library does not see:
/// files, sockets, memory of their own. Not all are found:
///
/// - of two threads of one rank, or with a slice's elements: the borrow checker and the modes see
///   to those;
/// - a missing [`flush`](crate::GlobalArray::flush) before a synchronisation;
/// - what [`update`](crate::GlobalArray::update) pushes, which waits for all ranks at both ends;
/// - by a request ([`get_async`](crate::GlobalArray::get_async)) later than where it was started;
/// - what happened too long ago: for each element the last write is kept, and up to three reads or
///   atomic operations; of arrays with more than 32,768 elements on a rank, several share a place
///   and some are not kept;
/// - where ranks are ordered by chance: atomic operations on elements of one rank whose places
///   there are a multiple of 16 apart count as on the same element; after `wait_until` all that
///   any rank did before counts as first, after [`ibarrier`](crate::Team::ibarrier) all that the
///   team's ranks did, and after [`probe`](crate::Team::probe) all that the sender did;
/// - after 2²⁸ synchronisations of a rank.
///
/// Lines are told for the first 1,023 from which a rank reaches into arrays.
///
/// A flag that one rank puts and another gets until it is there is a race, as the order of
/// [`put`](crate::GlobalArray::put) says: `wait_until`, an atomic operation or a signal is what
/// such a flag needs.
///
/// # Cost
/// Memory: on each rank, for each array 128 bytes for each rank of the job and 32 for each element
/// there, at most 1 MiB; 64 KiB once. Time, measured on 2 cores: a get or put of an element on the
/// same node takes 0.1 µs instead of 2 ns, an atomic operation 0.35 µs instead of 6 ns, a range 30
/// ns an element; over tcp a get takes 4 times as long, a put, which then waits, some 40 µs, an
/// atomic operation 7 times as long; a collective twice as long. At most 256 ranks. Where it is
/// off, nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Checks {
    /// That collectives go together: `PGAS_CHECKS=collectives`, or nothing.
    #[default]
    Collectives,
    /// That, and [races](Checks#races): `PGAS_CHECKS=races`.
    Races,
}

impl Checks {
    const VARIABLE: &str = "PGAS_CHECKS";

    pub(super) fn from_env() -> Result<Self> {
        let Some(text) = std::env::var_os(Self::VARIABLE) else {
            return Ok(Self::default());
        };
        match text.to_str().map(str::trim) {
            Some("collectives") => Ok(Self::Collectives),
            Some("races") => Ok(Self::Races),
            _ => Err(Error::new(
                ErrorKind::InvalidArgument,
                format!("{} is {text:?}, not collectives or races", Self::VARIABLE),
            )),
        }
    }

    /// What all ranks have, as each says it.
    pub(super) fn of_all(each: impl Iterator<Item = Self>) -> Result<Self> {
        let all: Vec<Self> = each.collect();
        let first = all.first().copied().unwrap_or_default();
        if let Some(rank) = all.iter().position(|&one| one != first) {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!(
                    "{} says {first:?} on rank 0 and {:?} on rank {rank}: it must be the same on \
                     all",
                    Self::VARIABLE,
                    all[rank]
                ),
            )
            .with_peer(rank));
        }
        if first == Self::Races && all.len() > RANKS {
            return Err(Error::new(
                ErrorKind::Unsupported,
                format!("{}=races is for at most {RANKS} ranks", Self::VARIABLE),
            ));
        }
        Ok(first)
    }
}

/// Most ranks: a rank's number has 8 bits in a record of an access.
const RANKS: usize = 256;
/// Lines of the program that have a number, from 1; 0 is all others. 10 bits.
const SITES: usize = 1 << 10;
/// Words of the board for each.
const SITE: usize = size_of::<Place>() / 8;

#[derive(Debug)]
pub(crate) struct Races {
    /// This rank in the world, and how many there are.
    rank: usize,
    ranks: usize,
    state: Mutex<State>,
    /// Of all ranks: a clock, then lines of the program.
    board: OnceLock<Segment>,
}

#[derive(Debug)]
struct State {
    /// The own entry is the last epoch that has ended.
    clock: Arc<[u64]>,
    /// Whether anything has been reached in the epoch that is going on.
    used: bool,
    sites: HashMap<&'static Location<'static>, usize>,
}

/// When an access is made.
#[derive(Clone, Debug)]
pub(crate) struct Moment {
    /// What comes before it.
    pub(crate) clock: Arc<[u64]>,
    pub(crate) epoch: u64,
}

impl Races {
    pub(super) fn new(rank: usize, ranks: usize) -> Self {
        Self {
            rank,
            ranks,
            state: Mutex::new(State {
                clock: vec![0; ranks].into(),
                used: false,
                sites: HashMap::new(),
            }),
            board: OnceLock::new(),
        }
    }

    /// Makes the boards. Collective.
    pub(super) fn start(&self, world: &Core) -> Result<()> {
        let words = self.ranks + SITES * SITE;
        let what = Memory {
            call: Call::NewArray,
            len: words * self.ranks,
            layout: 0,
            counts: &|_| words,
        };
        let _turn = world.turn()?;
        meet::<u64>(world, &what, true)?;
        let board = Segment::allocate::<u64>(world, &what, |_| (), || ())?;
        // Made once.
        let _ = self.board.set(board);
        let mut state = self.lock();
        let clock = state.clock.to_vec();
        self.set(&mut state, clock);
        Ok(())
    }

    /// This rank in the world.
    pub(crate) fn rank(&self) -> usize {
        self.rank
    }

    /// Ranks of the world: entries of a clock.
    pub(crate) fn ranks(&self) -> usize {
        self.ranks
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The moment of an access that tells nobody anything.
    pub(crate) fn access(&self) -> Moment {
        let mut state = self.lock();
        self.begin_epoch(&mut state);
        Moment {
            epoch: state.clock[self.rank] + 1,
            clock: state.clock.clone(),
        }
    }

    /// The moment of an access that is itself what tells others: it is in the epoch that it ends.
    pub(crate) fn telling_access(&self) -> Moment {
        let mut state = self.lock();
        self.begin_epoch(&mut state);
        self.end_epoch(&mut state);
        Moment {
            epoch: state.clock[self.rank],
            clock: state.clock.clone(),
        }
    }

    /// The clock to be told to others: all that this rank has done so far is in it.
    pub(crate) fn tell(&self) -> Arc<[u64]> {
        let mut state = self.lock();
        self.end_epoch(&mut state);
        state.clock.clone()
    }

    /// Before anything is reached in it.
    fn begin_epoch(&self, state: &mut State) {
        if !state.used {
            state.used = true;
            self.write(self.rank, &[state.clock[self.rank] + 1]);
        }
    }

    fn end_epoch(&self, state: &mut State) {
        if state.used {
            state.used = false;
            let mut clock = state.clock.to_vec();
            clock[self.rank] += 1;
            self.set(state, clock);
        }
    }

    /// Hears another rank's clock.
    pub(crate) fn hear(&self, clock: &[u64]) {
        let mut state = self.lock();
        let mine = state.clock.iter().zip(clock);
        if mine.clone().all(|(mine, other)| mine >= other) {
            return;
        }
        let mut all: Vec<u64> = mine.map(|(&mine, &other)| mine.max(other)).collect();
        // Nobody knows more of this rank than it does itself.
        all[self.rank] = state.clock[self.rank];
        self.set(&mut state, all);
    }

    /// Hears clocks one after another, as bytes.
    pub(super) fn hear_bytes(&self, bytes: &[u8]) {
        let words: Vec<u64> = bytes
            .as_chunks::<8>()
            .0
            .iter()
            .map(|word| u64::from_le_bytes(*word))
            .collect();
        words
            .chunks_exact(self.ranks)
            .for_each(|clock| self.hear(clock));
    }

    /// [`Races::tell`] as bytes.
    pub(super) fn tell_bytes(&self) -> Vec<u8> {
        let clock = self.tell();
        clock.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    /// Bytes of a clock.
    pub(super) fn bytes(&self) -> usize {
        8 * self.ranks
    }

    fn set(&self, state: &mut State, mut clock: Vec<u64>) {
        state.clock = clock.as_slice().into();
        // On the board with the epoch that goes on, so that it holds for all of it.
        clock[self.rank] += u64::from(state.used);
        self.write(0, &clock);
    }

    /// Writes to the own board.
    fn write(&self, at: usize, words: &[u64]) {
        let Some(board) = self.board.get() else {
            return; // Nothing has been reached, and nobody looks.
        };
        let to = board.memory().as_ptr().wrapping_add(8 * at);
        for (k, &word) in words.iter().enumerate() {
            // SAFETY: inside the own board, which is shared memory and lives as long as `self`.
            unsafe { element::store(to.wrapping_add(8 * k), word) };
        }
        // Before what it is about.
        fence(Ordering::SeqCst);
    }

    fn read(&self, world: &Core, rank: usize, at: usize, count: usize) -> Result<Vec<u64>> {
        let board = self.board.get();
        let board = board.ok_or_else(|| Error::new(ErrorKind::Closed, "no board"))?;
        if rank == self.rank {
            // Nothing there is news to this rank.
            return Ok(vec![0; count]);
        }
        board.key(world, rank)?.get_range(at, count)
    }

    /// All that `rank` of the world has done counts as before what this one does from now on.
    pub(super) fn hear_rank(&self, core: &Core, rank: usize) -> Result<()> {
        self.hear(&self.read(core.world(), rank, 0, self.ranks)?);
        Ok(())
    }

    /// [`Races::hear_rank`] of a team's ranks.
    pub(super) fn hear_team(&self, team: &Core) -> Result<()> {
        (0..team.size).try_for_each(|rank| self.hear_rank(team, team.peers.world_rank(rank)))
    }

    /// [`Races::hear_rank`] of all.
    pub(crate) fn hear_all(&self, core: &Core) -> Result<()> {
        for rank in 0..self.ranks {
            self.hear_rank(core, rank)?;
        }
        Ok(())
    }

    /// The number of a line of the program.
    pub(crate) fn number_of(&self, site: &'static Location<'static>) -> usize {
        let mut state = self.lock();
        if let Some(&number) = state.sites.get(site) {
            return number;
        }
        let number = state.sites.len() + 1;
        if number >= SITES {
            return 0;
        }
        state.sites.insert(site, number);
        let place: [u64; SITE] = bytemuck::cast(Place::new(site.file(), site.line()));
        self.write(self.ranks + number * SITE, &place);
        number
    }

    /// Where the line with this number of `rank` is, for people.
    pub(crate) fn site(&self, core: &Core, rank: usize, number: usize) -> Result<String> {
        if number == 0 {
            return Ok(" somewhere".into());
        }
        let at = self.ranks + number % SITES * SITE;
        let words = self.read(core.world(), rank, at, SITE)?;
        let words = <[u64; SITE]>::try_from(words).unwrap_or_default();
        Ok(bytemuck::cast::<_, Place>(words).to_string())
    }
}

impl Core {
    /// What is known of the order of things, if the job looks for races.
    pub(crate) fn races(&self) -> Option<&Races> {
        self.races.as_deref()
    }

    /// All ranks of the job.
    fn world(&self) -> &Self {
        let mut core = self;
        while let Some(parent) = &core.parent {
            core = parent;
        }
        core
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_told_comes_before() {
        let (a, b, c) = (Races::new(0, 3), Races::new(1, 3), Races::new(2, 3));
        let before =
            |first: &Moment, rank: usize, second: &Moment| first.epoch <= second.clock[rank];
        let put = a.access();
        assert!(!before(&put, 0, &b.access()));
        let told = a.tell();
        let later = a.access();
        b.hear(&told);
        assert!(before(&put, 0, &b.access()));
        assert!(!before(&later, 0, &b.access()), "after it was told");
        // Through a third rank; what it did itself, too.
        let own = b.access();
        c.hear(&b.tell());
        assert!(before(&put, 0, &c.access()) && before(&own, 1, &c.access()));
        // Nothing since: no new epoch, and what comes now is in a new one.
        assert_eq!(b.tell()[1], b.tell()[1]);
        assert!(!before(&b.access(), 1, &c.access()));
    }

    #[test]
    fn an_atomic_operation_is_in_the_epoch_that_it_tells() {
        let (a, b) = (Races::new(0, 2), Races::new(1, 2));
        let add = a.telling_access();
        b.hear(&add.clock);
        assert!(add.epoch <= b.access().clock[0]);
        assert!(a.access().epoch > b.access().clock[0]);
    }

    #[test]
    fn checks_must_agree() {
        use Checks::{Collectives, Races};
        let all = |each: &[Checks]| Checks::of_all(each.iter().copied());
        assert_eq!(all(&[Races, Races]).unwrap(), Races);
        let error = all(&[Collectives, Collectives, Races]).unwrap_err();
        assert_eq!(error.peer(), Some(2), "{error}");
        assert!(all(&[Races; RANKS]).is_ok() && all(&[Races; RANKS + 1]).is_err());
    }
}
