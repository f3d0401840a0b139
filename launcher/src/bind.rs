//! Which processors the ranks of one machine run on.

use std::fs;
use std::str::FromStr;

use rustix::thread::{CpuSet, sched_getaffinity};
use serde::{Deserialize, Serialize};

use crate::error::{Error, ErrorKind, Result};

/// What each rank is bound to.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Bind {
    /// Nothing: the system places ranks as it likes.
    #[default]
    None,
    /// A core with all its hardware threads.
    Core,
    /// The processors of a NUMA node, ranks dealt in blocks.
    Numa,
    /// These processors: an entry for each rank of a machine, in order.
    List(Vec<Vec<usize>>),
}

fn usage(message: String) -> Error {
    Error::new(ErrorKind::Usage, message)
}

impl FromStr for Bind {
    type Err = Error;

    /// `none`, `core`, `numa`, or an entry for each rank of a machine: `0-3,4-7`, `0,2`, `0+8,1+9`.
    fn from_str(text: &str) -> Result<Self> {
        match text {
            "none" => Ok(Self::None),
            "core" => Ok(Self::Core),
            "numa" => Ok(Self::Numa),
            list => {
                let entries = list.split(',').map(|entry| {
                    let parts = entry.split('+').map(range).collect::<Option<Vec<_>>>();
                    parts.map(|parts| parts.into_iter().flatten().collect())
                });
                let entries: Option<Vec<_>> = entries.collect();
                entries.map(Self::List).ok_or_else(|| {
                    usage(format!(
                        "{text:?} is none of none, core, numa, or a list like 0-3,4-7"
                    ))
                })
            }
        }
    }
}

fn range(text: &str) -> Option<Vec<usize>> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let (first, last) = (first.parse().ok()?, last.parse().ok()?);
    (first <= last && last < CpuSet::MAX_CPU).then(|| (first..=last).collect())
}

/// What the ranks of a machine are bound to.
#[derive(Debug, Default)]
pub(crate) struct Binding {
    /// For each rank its processors, ascending; nothing if no rank is bound.
    pub(crate) ranks: Vec<Vec<usize>>,
    /// Why nothing is bound although that was asked for.
    pub(crate) note: Option<String>,
}

/// Of a machine: processors that we may use, in the groups that a rank can be bound to.
struct Machine {
    allowed: Vec<usize>,
    cores: Vec<Vec<usize>>,
    nodes: Vec<Vec<usize>>,
}

impl Binding {
    /// For `ranks` ranks on this machine.
    ///
    /// # Errors
    /// If a list is too short, or names a processor that we may not use.
    pub(crate) fn here(bind: &Bind, ranks: usize) -> Result<Self> {
        match bind {
            Bind::None => Ok(Self::default()),
            _ => bind.on(&Machine::this()?, ranks),
        }
    }

    /// The processors of a rank.
    pub(crate) fn set(&self, local_rank: usize) -> Option<CpuSet> {
        let processors = self.ranks.get(local_rank)?;
        let mut set = CpuSet::new();
        for &processor in processors {
            set.set(processor);
        }
        Some(set)
    }

    /// The same as text.
    pub(crate) fn text(&self, local_rank: usize) -> Option<String> {
        self.ranks.get(local_rank).map(|list| as_ranges(list))
    }
}

impl Bind {
    fn on(&self, machine: &Machine, ranks: usize) -> Result<Binding> {
        let too_many = |what: &str, there: usize| {
            let note = format!("{ranks} ranks on {there} {what}: none is bound");
            Ok(Binding {
                ranks: Vec::new(),
                note: Some(note),
            })
        };
        let bound = match self {
            Self::None => Vec::new(),
            Self::Core if ranks > machine.cores.len() => {
                return too_many("cores", machine.cores.len());
            }
            Self::Core => machine.cores[..ranks].to_vec(),
            Self::Numa if ranks > machine.allowed.len() => {
                return too_many("processors", machine.allowed.len());
            }
            Self::Numa => {
                let nodes = &machine.nodes;
                let node = |rank: usize| nodes[rank * nodes.len() / ranks].clone();
                (0..ranks).map(node).collect()
            }
            Self::List(list) => {
                if list.len() < ranks {
                    let have = list.len();
                    return Err(usage(format!(
                        "--bind has {have} entries for {ranks} ranks on this machine"
                    )));
                }
                let mut all = list.iter().flatten();
                if let Some(other) = all.find(|one| !machine.allowed.contains(one)) {
                    let allowed = as_ranges(&machine.allowed);
                    return Err(usage(format!(
                        "--bind: no processor {other} here for us, only {allowed}"
                    )));
                }
                list[..ranks].to_vec()
            }
        };
        Ok(Binding {
            ranks: bound,
            note: None,
        })
    }
}

impl Machine {
    fn this() -> Result<Self> {
        let set = sched_getaffinity(None).map_err(|e| Error::io("processors", &e.into()))?;
        let allowed: Vec<usize> = (0..CpuSet::MAX_CPU)
            .filter(|&one| set.is_set(one))
            .collect();
        let group = |of: &dyn Fn(usize) -> String| {
            let mut groups: Vec<(String, Vec<usize>)> = Vec::new();
            for &processor in &allowed {
                let key = of(processor);
                match groups.iter_mut().find(|(other, _)| *other == key) {
                    Some((_, list)) => list.push(processor),
                    None => groups.push((key, vec![processor])),
                }
            }
            groups.into_iter().map(|(_, list)| list).collect()
        };
        let folder = |processor| format!("/sys/devices/system/cpu/cpu{processor}");
        let cores = group(&|processor| {
            let siblings = folder(processor) + "/topology/thread_siblings_list";
            // Unknown: each is a core of its own.
            fs::read_to_string(siblings).unwrap_or_else(|_| processor.to_string())
        });
        let nodes = group(&|processor| {
            let entries = fs::read_dir(folder(processor)).into_iter().flatten();
            let names = entries.flatten().map(|entry| entry.file_name());
            let mut names = names.map(|name| name.to_string_lossy().into_owned());
            // Unknown: all are one node.
            names
                .find(|name| {
                    let number = name.strip_prefix("node");
                    number.is_some_and(|number| number.parse::<u32>().is_ok())
                })
                .unwrap_or_default()
        });
        Ok(Self {
            allowed,
            cores,
            nodes,
        })
    }
}

/// `0-3,8`.
pub(crate) fn as_ranges(list: &[usize]) -> String {
    let runs = list.chunk_by(|a, b| a + 1 == *b).map(|run| match run {
        [first, .., last] => format!("{first}-{last}"),
        one => one.iter().map(usize::to_string).collect(),
    });
    runs.collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine() -> Machine {
        Machine {
            allowed: (0..8).collect(),
            cores: (0..4).map(|core| vec![core, core + 4]).collect(),
            nodes: vec![vec![0, 1, 4, 5], vec![2, 3, 6, 7]],
        }
    }

    fn bound(bind: &str, ranks: usize) -> Vec<String> {
        let binding = bind.parse::<Bind>().unwrap().on(&machine(), ranks).unwrap();
        (0..ranks).filter_map(|rank| binding.text(rank)).collect()
    }

    #[test]
    fn ranks_are_bound() {
        assert_eq!(bound("core", 3), ["0,4", "1,5", "2,6"]);
        assert_eq!(bound("numa", 3), ["0-1,4-5", "0-1,4-5", "2-3,6-7"]);
        assert_eq!(bound("numa", 1), ["0-1,4-5"]);
        assert_eq!(bound("0-3,4+6,7", 2), ["0-3", "4,6"]);
        assert_eq!(bound("none", 2), [""; 0]);
    }

    #[test]
    fn nothing_is_bound_when_oversubscribed() {
        for (bind, ranks) in [("core", 5), ("numa", 9)] {
            let binding = bind.parse::<Bind>().unwrap().on(&machine(), ranks).unwrap();
            assert!(binding.ranks.is_empty() && binding.note.is_some(), "{bind}");
        }
    }

    #[test]
    fn bad_lists_are_refused() {
        for text in ["", "x", "0-", "3-1", "0,,1", "0-99999", "cores", "-1"] {
            assert!(text.parse::<Bind>().is_err(), "{text:?}");
        }
        let list = |text: &str| text.parse::<Bind>().unwrap();
        let short = list("0").on(&machine(), 2).unwrap_err();
        assert!(short.message().contains("1 entries for 2 ranks"), "{short}");
        let beyond = list("0,9").on(&machine(), 2).unwrap_err();
        assert!(beyond.message().contains("no processor 9"), "{beyond}");
    }
}
