//! The hosts of a job: as users write them, and which ranks run where.

use crate::error::{Error, ErrorKind, Result};

/// Most ranks of a job.
pub const MAX_RANKS: u32 = 100_000;
/// Most hosts of a job.
pub(crate) const MAX_HOSTS: usize = 10_000;

/// A machine, and how many ranks it is meant for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Host {
    /// As the remote-start command takes it: a name, an address, or either with `USER@` in front.
    pub name: String,
    /// At least 1.
    pub slots: u32,
}

/// A machine and its ranks, ascending.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// See [`Host::name`].
    pub host: String,
    /// Numbers of its ranks.
    pub ranks: Vec<u32>,
}

/// In which order ranks are dealt to hosts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Map {
    /// Neighbours together: a host's ranks follow each other.
    #[default]
    Slot,
    /// In turns: rank 0 on the first host, rank 1 on the second.
    Node,
}

fn usage(message: String) -> Error {
    Error::new(ErrorKind::Usage, message)
}

/// `a:2,b,[fd00::1]:4`: names with a number of slots each, 1 if there is none. A name that comes again adds to its
/// slots.
///
/// # Errors
/// If an entry is no host, naming it.
pub fn parse_list(text: &str) -> Result<Vec<Host>> {
    let mut hosts = Vec::new();
    for entry in text.split(',') {
        let (name, slots) = entry_of(entry.trim())?;
        add(&mut hosts, name, slots.unwrap_or(1))?;
    }
    Ok(hosts)
}

/// A host on each line, as `a`, `a:2`, or `a slots=2`; what follows `#` is for people. `max_slots=` is read and has no
/// effect.
///
/// # Errors
/// If a line is none of these, with its number, or if there is no host.
pub fn parse_file(text: &str) -> Result<Vec<Host>> {
    let mut hosts = Vec::new();
    for (line, number) in text.lines().zip(1..) {
        let line = line.split('#').next().unwrap_or_default();
        let mut words = line.split_whitespace();
        let Some(first) = words.next() else {
            continue;
        };
        let at = |error: Error| usage(format!("line {number}: {}", error.message()));
        let (name, mut slots) = entry_of(first).map_err(at)?;
        for word in words {
            let (key, value) = word.split_once('=').unwrap_or((word, ""));
            match key {
                "slots" if slots.is_none() => slots = Some(count(value, word).map_err(at)?),
                "max_slots" | "max-slots" => drop(count(value, word).map_err(at)?),
                _ => return Err(at(usage(format!("{word:?} is not slots=N")))),
            }
        }
        add(&mut hosts, name, slots.unwrap_or(1)).map_err(at)?;
    }
    if hosts.is_empty() {
        return Err(usage("no host in it".to_owned()));
    }
    Ok(hosts)
}

fn add(hosts: &mut Vec<Host>, name: &str, slots: u32) -> Result<()> {
    if let Some(host) = hosts.iter_mut().find(|host| host.name == name) {
        host.slots = host.slots.saturating_add(slots).min(MAX_RANKS);
        return Ok(());
    }
    if hosts.len() == MAX_HOSTS {
        return Err(usage(format!("more than {MAX_HOSTS} hosts")));
    }
    hosts.push(Host {
        name: name.to_owned(),
        slots,
    });
    Ok(())
}

/// A name, and its slots if they are given.
fn entry_of(entry: &str) -> Result<(&str, Option<u32>)> {
    let colons = entry.matches(':').count();
    let (name, slots) = match entry.split_once(']') {
        // An address in brackets, which the remote-start command takes without.
        Some((address, rest)) if address.starts_with('[') => {
            (&address[1..], rest.strip_prefix(':'))
        }
        // A bare address.
        _ if colons > 1 => (entry, None),
        _ => entry
            .split_once(':')
            .map_or((entry, None), |(name, slots)| (name, Some(slots))),
    };
    let bracket_ends = entry.starts_with('[') && slots.is_none() && !entry.ends_with(']');
    let good = |c: char| c.is_alphanumeric() || "-._@:%".contains(c);
    if name.is_empty() || name.starts_with('-') || bracket_ends || !name.chars().all(good) {
        return Err(usage(format!("{entry:?} is not a host")));
    }
    Ok((name, slots.map(|slots| count(slots, entry)).transpose()?))
}

fn count(text: &str, entry: &str) -> Result<u32> {
    match text.parse() {
        Ok(slots) if (1..=MAX_RANKS).contains(&slots) => Ok(slots),
        _ => Err(usage(format!(
            "{entry:?}: {text:?} is not a number of slots"
        ))),
    }
}

/// Deals `ranks` ranks (all slots, if that is not said) to hosts. If there are more ranks than slots, the hosts are gone
/// through again. Hosts without ranks are left out.
///
/// # Errors
/// If there are no hosts, or more than [`MAX_RANKS`] ranks.
pub fn place(hosts: &[Host], ranks: Option<u32>, map: Map) -> Result<Vec<Place>> {
    let slots: u64 = hosts.iter().map(|host| u64::from(host.slots)).sum();
    let ranks = ranks.map_or(slots, u64::from);
    if slots == 0 || ranks == 0 || ranks > u64::from(MAX_RANKS) {
        return Err(usage(format!(
            "{ranks} ranks on {} hosts: 1 to {MAX_RANKS} are possible",
            hosts.len()
        )));
    }
    let empty = |host: &Host| Place {
        host: host.name.clone(),
        ranks: Vec::new(),
    };
    let mut places: Vec<Place> = hosts.iter().map(empty).collect();
    let ranks = u32::try_from(ranks).unwrap_or(MAX_RANKS);
    match map {
        Map::Slot => {
            let (rounds, mut left) = (u64::from(ranks) / slots, u64::from(ranks) % slots);
            let mut next = 0;
            for (place, host) in places.iter_mut().zip(hosts) {
                let more = left.min(u64::from(host.slots));
                left -= more;
                let count = rounds * u64::from(host.slots) + more;
                let end = next + u32::try_from(count).unwrap_or(MAX_RANKS);
                place.ranks = (next..end).collect();
                next = end;
            }
        }
        Map::Node => {
            let mut next = 0..ranks;
            // How often all slots may have been used.
            let mut rounds = 1;
            while !next.is_empty() {
                let mut full = true;
                for (place, host) in places.iter_mut().zip(hosts) {
                    if (place.ranks.len() as u64) < rounds * u64::from(host.slots) {
                        place.ranks.extend(next.next());
                        full = false;
                    }
                }
                rounds += u64::from(full);
            }
        }
    }
    places.retain(|place| !place.ranks.is_empty());
    Ok(places)
}

/// Whether this name means the machine that we run on, as far as can be told without asking anybody.
#[must_use]
pub fn is_here(name: &str) -> bool {
    let ours = crate::client::host_name();
    let short = ours.split('.').next().unwrap_or_default();
    ["localhost", "127.0.0.1", "::1", &ours, short].contains(&name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hosts(list: &[(&str, u32)]) -> Vec<Host> {
        let host = |&(name, slots): &(&str, u32)| Host {
            name: name.to_owned(),
            slots,
        };
        list.iter().map(host).collect()
    }

    #[test]
    fn lists() {
        for (text, right) in [
            ("a", &[("a", 1)][..]),
            ("a:2,b", &[("a", 2), ("b", 1)]),
            ("a,b,a", &[("a", 2), ("b", 1)]),
            ("me@node-1.site:16", &[("me@node-1.site", 16)]),
            ("[fd00::1]:4,fd00::2", &[("fd00::1", 4), ("fd00::2", 1)]),
            ("[fe80::1%eth0]", &[("fe80::1%eth0", 1)]),
        ] {
            assert_eq!(parse_list(text).unwrap(), hosts(right), "{text}");
        }
        for text in [
            "",
            "a,",
            ",",
            "a:",
            "a:0",
            "a:x",
            "a:-1",
            "a:100001",
            "-oProxyCommand=x",
            "a b",
            "[a",
            "[a]b",
            "a;b",
            "a:2:3:",
            "$(a)",
            "[]:2",
        ] {
            // An address may look like anything with colons.
            if text != "a:2:3:" {
                assert!(parse_list(text).is_err(), "{text:?}");
            }
        }
    }

    #[test]
    fn files() {
        let text = "# ours\n\na slots=2 # fast\n  b:3\r\nc max_slots=4\nd slots=1 max-slots=2\na\n";
        let right = hosts(&[("a", 3), ("b", 3), ("c", 1), ("d", 1)]);
        assert_eq!(parse_file(text).unwrap(), right);
        for (text, words) in [
            ("", "no host"),
            ("# a", "no host"),
            ("a\nb slots", "line 2"),
            ("a\n\nb slots=0", "line 3"),
            ("a:2 slots=2", "line 1"),
            ("a fast=1", "fast=1"),
            ("-a", "\"-a\" is not a host"),
        ] {
            let error = parse_file(text).unwrap_err();
            assert!(error.message().contains(words), "{text:?}: {error}");
        }
    }

    fn dealt(list: &[(&str, u32)], ranks: Option<u32>, map: Map) -> Vec<(String, Vec<u32>)> {
        let places = place(&hosts(list), ranks, map).unwrap();
        places.into_iter().map(|p| (p.host, p.ranks)).collect()
    }

    #[test]
    fn ranks_are_dealt() {
        let is = |name: &str, ranks: &[u32]| (name.to_owned(), ranks.to_vec());
        let two = [("a", 2), ("b", 1)];
        assert_eq!(
            dealt(&two, None, Map::Slot),
            [is("a", &[0, 1]), is("b", &[2])]
        );
        assert_eq!(
            dealt(&two, None, Map::Node),
            [is("a", &[0, 2]), is("b", &[1])]
        );
        assert_eq!(dealt(&two, Some(2), Map::Slot), [is("a", &[0, 1])]);
        assert_eq!(
            dealt(&two, Some(2), Map::Node),
            [is("a", &[0]), is("b", &[1])]
        );
        assert_eq!(
            dealt(&two, Some(7), Map::Slot),
            [is("a", &[0, 1, 2, 3, 4]), is("b", &[5, 6])]
        );
        assert_eq!(
            dealt(&two, Some(7), Map::Node),
            [is("a", &[0, 2, 3, 5, 6]), is("b", &[1, 4])]
        );
        assert!(place(&[], None, Map::Slot).is_err());
        assert!(place(&hosts(&two), Some(0), Map::Slot).is_err());
        assert!(place(&hosts(&two), Some(100_001), Map::Slot).is_err());
        let many = place(&hosts(&[("a", 60_000), ("b", 60_000)]), None, Map::Slot);
        assert!(many.is_err());
    }
}
