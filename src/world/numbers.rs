//! Numbers of teams, of which the tags of their messages have room for few: a number is used again
//! when nothing of its team is left.
//!
//! All ranks of a team that is divided must choose the same number, one that none of them uses. As
//! long as there are numbers that nobody has had, that is the largest of what the ranks propose.
//! Then it is the lowest that is in nobody's set.
//!
//! A team that all its ranks have dropped may have left messages that nobody has received, and some
//! may still be on their way. They must not reach another team. So each rank counts what it has sent
//! and received under the team's tags, and tells the difference with the news that it has dropped the
//! team (`Graves`). If all differences together are not zero, the number stays in use for ever.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Numbers are below this: they have 15 bits. The world has 0.
pub(super) const TEAMS: u32 = 1 << 15;

/// The numbers that this process uses.
#[derive(Debug)]
pub(super) struct Numbers(Mutex<State>);

#[derive(Debug)]
struct State {
    /// No team of this process has had this number or one above; [`TEAMS`] for the last.
    next: u32,
    /// A bit for each number in use, the lowest first.
    used: Vec<u8>,
    /// No array of a team that this process has dropped had this number in its team or one above.
    next_array: u64,
}

impl Default for Numbers {
    fn default() -> Self {
        Self(Mutex::new(State {
            next: 1,
            used: Vec::new(),
            next_array: 0,
        }))
    }
}

impl Numbers {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A number that no team of this process has had, nor any above; [`TEAMS`] if there is none.
    pub(super) fn next(&self) -> u32 {
        self.lock().next
    }

    /// As for teams, so for arrays of those teams that may have had the number of one that is made.
    pub(super) fn next_array(&self) -> u64 {
        self.lock().next_array
    }

    /// A team that may have ranks of this process's team has this number.
    pub(super) fn given(&self, number: u32) {
        let mut state = self.lock();
        state.next = state.next.max(number + 1);
    }

    /// A team of this process has this number.
    pub(super) fn take(&self, number: u32) {
        let mut state = self.lock();
        state.used.resize(TEAMS as usize / 8, 0);
        state.used[number as usize / 8] |= 1 << (number % 8);
    }

    /// Nothing is left of the teams that had these numbers.
    pub(super) fn free(&self, numbers: &[u32]) {
        let mut state = self.lock();
        for &number in numbers {
            if let Some(bits) = state.used.get_mut(number as usize / 8) {
                *bits &= !(1 << (number % 8));
            }
        }
    }

    /// A team goes whose next array would have had this number.
    pub(super) fn arrays_below(&self, next: u64) {
        let mut state = self.lock();
        state.next_array = state.next_array.max(next);
    }

    /// All numbers in use.
    pub(super) fn used(&self) -> Vec<u8> {
        let mut used = self.lock().used.clone();
        used.resize(TEAMS as usize / 8, 0);
        // The world's.
        used[0] |= 1;
        used
    }
}

/// Adds the numbers that another rank uses.
pub(super) fn add(used: &mut [u8], others: &[u8]) {
    used.iter_mut().zip(others).for_each(|(a, b)| *a |= b);
}

/// The lowest number that is not in use.
pub(super) fn lowest_free(used: &[u8]) -> Option<u32> {
    let (at, bits) = used.iter().enumerate().find(|(_, bits)| **bits != 0xff)?;
    u32::try_from(8 * at)
        .ok()
        .map(|at| at + bits.trailing_ones())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_used_again() {
        let (here, there) = (Numbers::default(), Numbers::default());
        assert_eq!(here.next(), 1);
        for number in 1..TEAMS {
            here.given(number);
            match number {
                1..20 => here.take(number),
                _ => there.take(number),
            }
        }
        assert_eq!(here.next(), TEAMS);
        let free = || {
            let mut used = here.used();
            add(&mut used, &there.used());
            lowest_free(&used)
        };
        assert_eq!(free(), None);
        there.free(&[19, 25]);
        assert_eq!(free(), Some(25));
        here.free(&[8]);
        assert_eq!(free(), Some(8));
        here.take(8);
        here.free(&[7, 16]);
        assert_eq!(free(), Some(7));
        // Of the last one, too.
        let last = Numbers::default();
        last.take(TEAMS - 1);
        assert_eq!(last.used()[TEAMS as usize / 8 - 1], 1 << 7);
        assert_eq!(lowest_free(&Numbers::default().used()), Some(1));
    }
}
