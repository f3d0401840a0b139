//! The processors that this process may use, some of which other ranks of its machine may use too.

use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicUsize, Ordering};

/// What one rank may use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Cores {
    /// The processors of its affinity mask, a bit for each.
    mask: Vec<u64>,
    /// As many at a time, where a control group allows less than the mask.
    quota: usize,
}

impl Cores {
    pub(crate) fn of_this_process() -> Self {
        let quota = std::thread::available_parallelism().map_or(1, usize::from);
        let set = rustix::thread::sched_getaffinity(None);
        let numbers = (0..rustix::thread::CpuSet::MAX_CPU)
            .filter(|&cpu| set.as_ref().is_ok_and(|set| set.is_set(cpu)));
        let mut mask = Vec::new();
        for cpu in numbers {
            mask.resize(cpu / 64 + 1, 0);
            mask[cpu / 64] |= 1 << (cpu % 64);
        }
        Self { mask, quota }
    }

    fn has(&self, cpu: usize) -> bool {
        let word = self.mask.get(cpu / 64);
        word.is_some_and(|word| word >> (cpu % 64) & 1 == 1)
    }

    /// How many fall to this rank if each processor is divided among those of `all`, the ranks of
    /// this machine, that may use it; 0 if it is less than one.
    fn share(&self, all: &[&Self]) -> usize {
        let cpus = (0..64 * self.mask.len()).filter(|&cpu| self.has(cpu));
        // In parts of a processor, rounded up, so that thirds add up to one.
        const ONE: usize = 1 << 20;
        let (mut count, mut parts) = (0, 0);
        for cpu in cpus {
            let ranks = all.iter().filter(|rank| rank.has(cpu)).count();
            count += 1;
            parts += ONE.div_ceil(ranks.max(1));
        }
        if count == 0 || self.quota < count {
            return self.quota / all.len().max(1);
        }
        parts / ONE
    }
}

/// Of this process, once ranks have told each other.
static OWN: AtomicUsize = AtomicUsize::new(1);

/// `all` are those of the ranks of this machine, `mine` among them.
pub(crate) fn divide(mine: &Cores, all: &[&Cores]) {
    OWN.store(mine.share(all), Ordering::Relaxed);
}

/// Processors that this rank has for itself; 0 if it shares one.
pub(crate) fn own() -> usize {
    OWN.load(Ordering::Relaxed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cores(cpus: &[usize]) -> Cores {
        let mut mask = vec![0; 3];
        cpus.iter()
            .for_each(|cpu| mask[cpu / 64] |= 1 << (cpu % 64));
        Cores { mask, quota: 192 }
    }

    #[test]
    fn processors_are_divided() {
        let share = |all: &[Cores]| -> Vec<usize> {
            let refs: Vec<_> = all.iter().collect();
            all.iter().map(|cores| cores.share(&refs)).collect()
        };
        let all = cores(&[0, 1, 64, 130]);
        assert_eq!(share(std::slice::from_ref(&all)), [4]);
        assert_eq!(share(&[all.clone(), all.clone()]), [2, 2]);
        assert_eq!(share(&[all.clone(), all.clone(), all.clone()]), [1, 1, 1]);
        assert_eq!(share(&vec![all.clone(); 5]), [0; 5]);
        // Bound to one each, to two each, and all to the same.
        assert_eq!(share(&[cores(&[0]), cores(&[1])]), [1, 1]);
        assert_eq!(share(&[cores(&[0, 1]), cores(&[64, 130])]), [2, 2]);
        assert_eq!(share(&[cores(&[7]), cores(&[7])]), [0, 0]);
        assert_eq!(share(&vec![cores(&[3, 4, 5, 6, 7, 8, 9]); 7]), [1; 7]);
        // A control group that allows less.
        let limited = Cores { quota: 2, ..all };
        assert_eq!(share(std::slice::from_ref(&limited)), [2]);
        assert_eq!(share(&vec![limited; 4]), [0; 4]);
    }

    #[test]
    fn this_process_has_some() {
        let cores = Cores::of_this_process();
        assert!(cores.share(&[&cores]) >= 1);
    }
}
