//! When time is up: what the ranks were doing.

use std::time::Duration;

use super::Engine;
use crate::agent::link::ALL;
use crate::agent::wire::ToAgent;
use crate::outcome::{Cause, ranges};
use crate::server::State;
use crate::watch;
use crate::wire::ToRank;

impl Engine {
    /// Asks what the ranks are doing: themselves, and the system.
    pub(super) fn ask(&mut self) {
        // The system first: a rank that is asked wakes up.
        for (rank, doing) in self.ranks.iter().zip(&mut self.doing) {
            if let (Some(process), None) = (&rank.process, rank.exit) {
                doing.1 = Some(watch::doing(process.pid()));
            }
        }
        if let Some(fleet) = &mut self.fleet {
            // If that fails, we know less.
            let _ = fleet.post(ALL, &ToAgent::Look);
        }
        self.server.tell_all(&ToRank::Report);
    }

    pub(super) fn answered(&self) -> bool {
        (0..).zip(&self.ranks).all(|(number, rank)| {
            let (said, seen) = &self.doing[number];
            let joined = self.server.state(number) == State::Joined;
            rank.exit.is_some() || (said.is_some() || !joined) && seen.is_some()
        })
    }

    /// What the ranks that have not ended were doing, those that say the same together.
    pub(super) fn doings(&self) -> Vec<String> {
        let mut groups: Vec<(&str, Vec<u32>)> = Vec::new();
        for ((number, rank), doing) in (0..).zip(&self.ranks).zip(&self.doing) {
            let what = match doing {
                (Some(said), _) => said,
                (None, Some(seen)) => seen,
                (None, None) => "not known",
            };
            if rank.exit.is_none() {
                match groups.iter_mut().find(|(other, _)| *other == what) {
                    Some((_, ranks)) => ranks.push(number),
                    None => groups.push((what, vec![number])),
                }
            }
        }
        let line = |(what, ranks): (&str, Vec<u32>)| {
            let s = if ranks.len() == 1 { "" } else { "s" };
            format!("rank{s} {}: {what}", ranges(&ranks))
        };
        groups.into_iter().map(line).collect()
    }

    pub(super) fn too_late(&self, after: Duration) -> Cause {
        let any = (0..self.ranks.len()).any(|number| self.server.state(number) != State::Absent);
        let alive = (0..)
            .zip(&self.ranks)
            .filter(|(_, rank)| rank.exit.is_none());
        let (not_joined, not_ended) = alive
            .map(|(number, _)| number)
            .partition(|&number| any && self.server.state(number as usize) == State::Absent);
        Cause::TimedOut {
            after,
            not_joined,
            not_ended,
        }
    }
}
