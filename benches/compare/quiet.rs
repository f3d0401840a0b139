//! Whether the machine was ours while we measured.

use std::fs;
use std::time::Instant;

/// Share of a core that others may take before the figures are doubtful.
const TOLERABLE: f64 = 0.05;
/// Ticks in a second, in /proc; fixed on Linux.
const TICKS: f64 = 100.0;

pub(crate) struct Watch {
    begin: Instant,
    all: f64,
    ours: f64,
}

impl Watch {
    pub(crate) fn start() -> Option<Self> {
        Some(Self {
            begin: Instant::now(),
            all: all()?,
            ours: ours()?,
        })
    }

    /// How many cores others used on average since the start; a note if that is too many.
    pub(crate) fn note(&self) -> Option<String> {
        let others = (all()? - self.all) - (ours()? - self.ours);
        let cores = others / TICKS / self.begin.elapsed().as_secs_f64();
        (cores > TOLERABLE).then(|| {
            format!(
                "THE MACHINE WAS NOT QUIET: other processes, or other guests of its host, took \
                 {cores:.2} cores meanwhile; repeat before quoting"
            )
        })
    }
}

/// Ticks that all cores were busy or taken away.
fn all() -> Option<f64> {
    let text = fs::read_to_string("/proc/stat").ok()?;
    let mut words = text.lines().next()?.split_whitespace().skip(1);
    // user nice system idle iowait irq softirq steal; the last is what other guests took.
    let mut take = |count| {
        (0..count)
            .filter_map(|_| words.next()?.parse::<f64>().ok())
            .sum::<f64>()
    };
    let busy = take(3);
    take(2);
    Some(busy + take(3))
}

/// Ticks of this process and of all its children that have ended.
fn ours() -> Option<f64> {
    let text = fs::read_to_string("/proc/self/stat").ok()?;
    // After the name in parentheses the fields are numbered from 3; these are 14 to 17.
    let (_, rest) = text.rsplit_once(") ")?;
    let ticks = rest.split_whitespace().skip(11).take(4);
    Some(ticks.filter_map(|word| word.parse::<f64>().ok()).sum())
}
