//! Collects figures by row and by who was measured, and prints them.

use crate::batches::median;
use crate::rivals::{RIVALS, Rivals};
use crate::{Result, rivals};
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// One line of the table.
struct Row {
    part: &'static str,
    figure: &'static str,
    title: &'static str,
    unit: Unit,
    target: Target,
}

#[derive(Clone, Copy, PartialEq)]
enum Unit {
    /// Nanoseconds; fewer are better.
    Time,
    /// GB/s; more are better.
    Rate,
    /// Instructions; fewer are better.
    Count,
}

/// What is asked of a figure.
#[derive(Clone, Copy)]
enum Target {
    None,
    /// Times the limit: at most for times, at least for rates.
    Limit(f64),
    /// Times the best of the rivals.
    Best(f64),
    /// Times the rival of that name.
    Rival(&'static str, f64),
    /// At most so many nanoseconds.
    Ns(f64),
    /// So many times as fast as another figure of ours in the same part.
    Faster(&'static str, f64),
}

const fn row(
    part: &'static str,
    figure: &'static str,
    title: &'static str,
    unit: Unit,
    target: Target,
) -> Row {
    Row {
        part,
        figure,
        title,
        unit,
        target,
    }
}

use Target::{Best, Faster, Limit, Ns, Rival};
use Unit::{Count, Rate, Time};

#[rustfmt::skip]
const ROWS: &[Row] = &[
    row("memory", "get_random", "get, random in 64 MiB", Time, Limit(1.3)),
    row("memory", "get_chain", "get, random, each waits for the last", Time, Limit(1.3)),
    row("memory", "get_cached", "get, in cache", Time, Target::None),
    row("memory", "get_chain_cached", "get, in cache, each waits for the last", Time, Target::None),
    row("memory", "get_instructions", "get, in cache: instructions of the loop", Count, Target::None),
    row("memory", "get_plane", "get of a matrix in blocks, in cache", Time, Target::None),
    row("memory", "get_plane_instructions", "get of a matrix in blocks: instructions of the loop", Count, Target::None),
    row("memory", "get_cyclic", "get of a cyclic array, in cache", Time, Target::None),
    row("memory", "get_cyclic_instructions", "get of a cyclic array: instructions of the loop", Count, Target::None),
    row("memory", "put_random", "put, random in 64 MiB", Time, Limit(1.3)),
    row("memory", "put_flush_random", "put + flush, random", Time, Target::None),
    row("memory", "put_cached", "put, in cache", Time, Target::None),
    row("memory", "put_instructions", "put, in cache: instructions of the loop", Count, Target::None),
    row("memory", "fetch_add_random", "fetch_add, random in 64 MiB", Time, Limit(1.3)),
    row("memory", "fetch_add_cached", "fetch_add, in cache", Time, Limit(1.3)),
    row("memory", "fetch_add_instructions", "fetch_add, in cache: instructions of the loop", Count, Target::None),
    row("memory", "get_into_4k", "get_into 4 KiB", Rate, Limit(0.95)),
    row("memory", "get_range_4k", "get_range 4 KiB", Rate, Limit(0.95)),
    row("memory", "put_range_4k", "put_range 4 KiB", Rate, Limit(0.95)),
    row("memory", "get_into_1m", "get_into 1 MiB", Rate, Limit(0.95)),
    row("memory", "get_range_1m", "get_range 1 MiB", Rate, Limit(0.95)),
    row("memory", "put_range_1m", "put_range 1 MiB", Rate, Limit(0.95)),
    row("memory", "get_into_16m", "get_into 16 MiB", Rate, Limit(0.95)),
    row("memory", "get_range_16m", "get_range 16 MiB", Rate, Limit(0.95)),
    row("memory", "put_range_16m", "put_range 16 MiB", Rate, Limit(0.95)),
    row("batch", "gather", "gather, 1M of 2²² words, an element", Time, Limit(1.3)),
    row("batch", "scatter", "scatter, 1M of 2²² words, an element", Time, Limit(1.3)),
    row("batch", "scatter_with_64k", "scatter_with sum, 1M into 2¹⁶ bins, an element", Time, Limit(1.3)),
    row("batch", "scatter_with_4m", "scatter_with sum, 1M into 2²² bins, an element", Time, Limit(1.3)),
    row("batch", "update_64k", "update sum, each rank 1M into 2¹⁶ bins, an element", Time, Limit(1.3)),
    row("batch", "update_4m", "update sum, each rank 1M into 2²² bins, an element", Time, Limit(1.3)),
    row("batch", "column", "get_section, column of 1000 rows", Time, Faster("column_gets", 1.0)),
    row("batch", "column_gets", "the same by 1000 gets", Time, Target::None),
    row("stencil", "stencil_alone", "Jacobi sweep, 2000 × 2000, without exchange", Time, Target::None),
    row("stencil", "stencil_exchange", "Jacobi sweep with exchange", Time, Limit(1.05)),
    row("stencil", "stencil_overlap", "Jacobi sweep with exchange_begin, inner cells, finish", Time, Limit(1.05)),
    row("tcp", "get_random", "tcp: get", Time, Rival("openshmem", 1.0)),
    row("tcp", "put_flush_random", "tcp: put + flush", Time, Target::None),
    row("tcp", "fetch_add_random", "tcp: fetch_add", Time, Target::None),
    row("tcp", "get_into_1m", "tcp: get_into 1 MiB", Rate, Target::None),
    row("tcp", "get_busy", "tcp: get while its owner computes, mean", Time, Ns(100e3)),
    row("tcp", "get_busy_median", "tcp: get while its owner computes, median", Time, Target::None),
    row("tcp", "get_busy_worst", "tcp: get while its owner computes, worst", Time, Target::None),
    row("tcp", "fetch_add_busy", "tcp: fetch_add while its owner computes, mean", Time, Ns(100e3)),
    row("tcp", "fetch_add_busy_median", "tcp: fetch_add while its owner computes, median", Time, Target::None),
    row("tcp", "fetch_add_busy_worst", "tcp: fetch_add while its owner computes, worst", Time, Target::None),
    row("batch-tcp", "gather", "tcp: gather, random of 2²² words, an element", Time, Faster("gather_gets", 3.0)),
    row("batch-tcp", "gather_gets", "tcp: the same by gets", Time, Target::None),
    row("batch-tcp", "scatter", "tcp: scatter, an element", Time, Target::None),
    row("batch-tcp", "scatter_with_4m", "tcp: scatter_with sum, an element", Time, Target::None),
    row("batch-tcp", "column", "tcp: get_section, column of 1000 rows", Time, Faster("column_gets", 10.0)),
    row("batch-tcp", "column_gets", "tcp: the same by 1000 gets", Time, Target::None),
    row("barrier2", "barrier", "barrier, 2 ranks", Time, Target::None),
    row("barrier4", "barrier", "barrier, 4 ranks on 2 cores", Time, Limit(2.0)),
    row("barrier16", "barrier", "barrier, 16 ranks on 2 cores", Time, Target::None),
    row("whole", "sort", "sort_unstable of 2²⁴ u64, beside rayon's on 2 threads", Time, Limit(1.43)),
    row("whole", "load_npy", "read_npy of 128 MiB, beside reading its bytes", Time, Limit(1.2)),
    row("collectives2", "barrier", "barrier, 2 ranks", Time, Best(1.0)),
    row("collectives2", "broadcast_8", "broadcast 8 B, 2 ranks", Time, Best(1.0)),
    row("collectives2", "broadcast_1m", "broadcast 1 MiB, 2 ranks", Time, Best(1.0)),
    row("collectives2", "all_reduce_8", "all_reduce 8 B, 2 ranks", Time, Best(1.0)),
    row("collectives2", "all_reduce_1m", "all_reduce 1 MiB, 2 ranks", Time, Best(1.0)),
    row("collectives2", "all_to_all_4k", "all_to_all 4 KiB, 2 ranks", Time, Best(1.0)),
    row("collectives2", "message_1m", "message 1 MiB, answer, barrier, 2 ranks", Time, Best(1.0)),
    row("collectives2", "exchange_1m", "isend and irecv 1 MiB, in pairs, 2 ranks", Time, Best(1.0)),
    row("collectives8", "barrier", "barrier, 8 ranks on 2 cores", Time, Best(1.0)),
    row("collectives8", "broadcast_8", "broadcast 8 B, 8 ranks on 2 cores", Time, Best(1.0)),
    row("collectives8", "broadcast_1m", "broadcast 1 MiB, 8 ranks on 2 cores", Time, Best(1.0)),
    row("collectives8", "all_reduce_8", "all_reduce 8 B, 8 ranks on 2 cores", Time, Best(1.0)),
    row("collectives8", "all_reduce_1m", "all_reduce 1 MiB, 8 ranks on 2 cores", Time, Best(1.0)),
    row("collectives8", "all_to_all_4k", "all_to_all 4 KiB, 8 ranks on 2 cores", Time, Best(1.0)),
    row("collectives8", "message_1m", "message 1 MiB, answer, barrier, 8 ranks on 2 cores", Time, Best(1.0)),
    row("collectives8", "exchange_1m", "isend and irecv 1 MiB, in pairs, 8 ranks on 2 cores", Time, Best(1.0)),
    row("collectives-tcp", "barrier", "barrier, tcp, 2 ranks", Time, Target::None),
    row("collectives-tcp", "broadcast_8", "broadcast 8 B, tcp, 2 ranks", Time, Target::None),
    row("collectives-tcp", "broadcast_1m", "broadcast 1 MiB, tcp, 2 ranks", Time, Target::None),
    row("collectives-tcp", "all_reduce_8", "all_reduce 8 B, tcp, 2 ranks", Time, Target::None),
    row("collectives-tcp", "all_reduce_1m", "all_reduce 1 MiB, tcp, 2 ranks", Time, Target::None),
    row("collectives-tcp", "all_to_all_4k", "all_to_all 4 KiB, tcp, 2 ranks", Time, Target::None),
    row("collectives-tcp", "message_1m", "message 1 MiB, answer, barrier, tcp, 2 ranks", Time, Target::None),
    row("collectives-tcp", "exchange_1m", "isend and irecv 1 MiB, in pairs, tcp, 2 ranks", Time, Target::None),
    row("prk", "nstream", "PRK nstream, 4,000,000 elements, an iteration", Time, Best(1.0)),
    row("prk", "stencil", "PRK stencil, 2000 × 2000, radius 2, an iteration", Time, Best(1.0)),
    row("prk", "transpose", "PRK transpose, 2048 × 2048, an iteration", Time, Best(1.0)),
    row("prk", "synch_p2p", "PRK synch_p2p, 2000 × 2000, an iteration", Time, Best(1.0)),
    row("prk", "reduce", "PRK reduce, vectors of 100,000, an iteration", Time, Best(1.0)),
    row("launch", "start", "start and end 16 processes", Time, Rival("mpich", 1.0)),
];

/// Whose figures there are.
const LIMIT: &str = "limit";
const OURS: &str = "pgas";

pub(crate) struct Table {
    /// By part, figure and who: one value a round.
    values: BTreeMap<(&'static str, String, &'static str), Vec<f64>>,
    /// Ratios to the limit, from figures of one process.
    notes: Vec<String>,
    /// By who, and part and figure: the ways that were the fastest, in any round.
    ways: BTreeMap<(&'static str, String), Vec<String>>,
    versions: Vec<String>,
}

impl Table {
    pub(crate) fn new(rivals: &Rivals) -> Self {
        Self {
            values: BTreeMap::new(),
            notes: rivals.missing.clone(),
            ways: BTreeMap::new(),
            versions: rivals.versions(),
        }
    }

    /// Adds what `who` printed in one run of `part`.
    pub(crate) fn add(&mut self, part: &'static str, who: &'static str, output: Result<String>) {
        let output = match output {
            Ok(output) => output,
            Err(reason) => {
                let note = format!("{who} failed in {part}: {reason}");
                eprintln!("compare: {note}");
                self.note(note);
                return;
            }
        };
        for line in output.lines() {
            if let Some((figure, way)) = line
                .strip_prefix("way ")
                .and_then(|rest| rest.split_once(' '))
            {
                let ways = self
                    .ways
                    .entry((who, format!("{part} {figure}")))
                    .or_default();
                if !ways.iter().any(|it| it == way) {
                    ways.push(way.to_owned());
                }
            }
            let Some(rest) = line.strip_prefix("figure ") else {
                continue;
            };
            let mut words = rest.split_whitespace();
            let name = words.next().unwrap_or_default();
            let mut numbers = words.filter_map(|word| word.parse::<f64>().ok());
            if name == "wrong" && numbers.next().is_some_and(|wrong| wrong != 0.0) {
                self.note(format!("{who} read WRONG values in {part}"));
                continue;
            }
            for (who, value) in [who, LIMIT].into_iter().zip(numbers) {
                let key = (part, name.to_owned(), who);
                self.values.entry(key).or_default().push(value);
            }
        }
    }

    pub(crate) fn note(&mut self, note: String) {
        if !self.notes.contains(&note) {
            self.notes.push(note);
        }
    }

    fn values(&self, row: &Row, who: &'static str) -> &[f64] {
        let key = (row.part, row.figure.to_owned(), who);
        self.values.get(&key).map_or(&[], Vec::as_slice)
    }

    fn median(&self, row: &Row, who: &'static str) -> Option<f64> {
        let mut values = self.values(row, who).to_vec();
        (!values.is_empty()).then(|| median(&mut values))
    }

    /// Median, least and largest of ours divided by `who`'s, round by round.
    fn ratio(&self, row: &Row, who: &'static str) -> Option<(f64, f64, f64)> {
        Self::ratio_of(self.values(row, OURS), self.values(row, who))
    }

    fn ratio_of(values: &[f64], others: &[f64]) -> Option<(f64, f64, f64)> {
        let pairs = values.iter().zip(others);
        let mut ratios: Vec<f64> = pairs.map(|(value, other)| value / other).collect();
        if ratios.is_empty() {
            return None;
        }
        let middle = median(&mut ratios);
        Some((middle, ratios[0], ratios[ratios.len() - 1]))
    }

    /// What is asked, and whether it is reached.
    fn verdict(&self, row: &Row) -> Option<(String, bool)> {
        let better = |ratio: f64, bound: f64| match row.unit {
            Rate => ratio >= bound,
            Time | Count => ratio <= bound,
        };
        let sign = if row.unit == Rate { "≥" } else { "≤" };
        match row.target {
            Target::None => None,
            Limit(bound) => {
                let (ratio, ..) = self.ratio(row, LIMIT)?;
                Some((format!("{sign} {bound} × limit"), better(ratio, bound)))
            }
            Rival(who, bound) => {
                let (ratio, ..) = self.ratio(row, who)?;
                Some((
                    format!("{sign} {bound} × {}", title(who)),
                    better(ratio, bound),
                ))
            }
            Best(bound) => {
                let ratios = RIVALS
                    .iter()
                    .filter_map(|rival| Some((self.ratio(row, rival.name)?.0, rival.title)));
                let best = |a: &(f64, &str), b: &(f64, &str)| match row.unit {
                    Rate => b.0.total_cmp(&a.0),
                    Time | Count => a.0.total_cmp(&b.0),
                };
                let (ratio, who) = ratios.max_by(best)?;
                Some((format!("{sign} {bound} × {who}"), better(ratio, bound)))
            }
            Ns(bound) => {
                let ours = self.median(row, OURS)?;
                Some((format!("≤ {}", show(bound, Time)), ours <= bound))
            }
            Faster(figure, times) => {
                let key = (row.part, figure.to_owned(), OURS);
                let others = self.values.get(&key)?;
                let (ratio, ..) = Self::ratio_of(others, self.values(row, OURS))?;
                let text = format!("≥ {times} × as fast as gets ({ratio:.2})");
                Some((text, ratio >= times))
            }
        }
    }

    pub(crate) fn text(&self) -> String {
        // Those who were measured.
        let rivals: Vec<_> = RIVALS
            .iter()
            .filter(|rival| self.values.keys().any(|(.., who)| *who == rival.name))
            .collect();
        let mut lines = vec![vec![
            String::new(),
            "pgas".into(),
            "limit".into(),
            "pgas/limit [least–largest]".into(),
            "asked".into(),
            String::new(),
        ]];
        lines[0].extend(rivals.iter().map(|rival| rival.title.to_owned()));
        for row in ROWS {
            let Some(ours) = self.median(row, OURS) else {
                continue;
            };
            let cell = |who| {
                self.median(row, who)
                    .map_or(String::new(), |value| show(value, row.unit))
            };
            let verdict = self.verdict(row);
            let mut line = vec![
                row.title.to_owned(),
                show(ours, row.unit),
                cell(LIMIT),
                self.ratio(row, LIMIT)
                    .map_or(String::new(), |(middle, least, largest)| {
                        format!("{middle:.2} [{least:.2}–{largest:.2}]")
                    }),
                verdict
                    .as_ref()
                    .map_or(String::new(), |(asked, _)| asked.clone()),
                match verdict {
                    None => String::new(),
                    Some((_, true)) => "yes".into(),
                    Some((_, false)) => "NO".into(),
                },
            ];
            line.extend(rivals.iter().map(|rival| {
                match self.ratio(row, rival.name) {
                    None => String::new(),
                    // How many times better than the rival we are.
                    Some((ratio, ..)) => format!(
                        "{} ({:.2}×)",
                        cell(rival.name),
                        if row.unit == Rate { ratio } else { 1.0 / ratio }
                    ),
                }
            }));
            lines.push(line);
        }
        let mut text = columns(&lines);
        text.push_str("\n(n×): pgas is n times as fast as this rival. Medians of rounds.\n");
        for version in &self.versions {
            let _ = writeln!(text, "{version}");
        }
        for ((who, figure), ways) in &self.ways {
            let _ = writeln!(text, "{}, {figure}: {}", title(who), ways.join(" or "));
        }
        for note in &self.notes {
            let _ = writeln!(text, "NOTE: {note}");
        }
        text
    }

    /// One object for each row and who was measured.
    pub(crate) fn json(&self) -> String {
        let mut text = String::new();
        let whos = [OURS, LIMIT]
            .into_iter()
            .chain(RIVALS.iter().map(|rival| rival.name));
        for who in whos {
            for row in ROWS {
                let Some(middle) = self.median(row, who) else {
                    continue;
                };
                let unit = match row.unit {
                    Time => "ns",
                    Rate => "GB/s",
                    Count => "instructions",
                };
                let rounds: Vec<_> = self.values(row, who).iter().map(f64::to_string).collect();
                let _ = write!(
                    text,
                    r#"{{"who":"{who}","part":"{}","figure":"{}","unit":"{unit}","median":{middle}"#,
                    row.part, row.figure
                );
                if let (true, Some((asked, reached))) = (who == OURS, self.verdict(row)) {
                    let _ = write!(text, r#","asked":"{asked}","reached":{reached}"#);
                }
                let _ = writeln!(text, r#","rounds":[{}]}}"#, rounds.join(","));
            }
        }
        text
    }
}

fn title(who: &str) -> &str {
    let rival = rivals::RIVALS.iter().find(|rival| rival.name == who);
    rival.map_or(who, |rival| rival.title)
}

/// Three digits and the unit that fits.
fn show(value: f64, unit: Unit) -> String {
    let (value, unit) = match unit {
        Count => return format!("{value:.1}"),
        Rate => (value, "GB/s"),
        Time if value >= 1e6 => (value / 1e6, "ms"),
        Time if value >= 1e3 => (value / 1e3, "µs"),
        Time => (value, "ns"),
    };
    let digits = match value {
        v if v >= 100.0 => 0,
        v if v >= 10.0 => 1,
        _ => 2,
    };
    format!("{value:.digits$} {unit}")
}

/// A Markdown table that can be read as it is.
fn columns(lines: &[Vec<String>]) -> String {
    let width = |column: usize| {
        let widths = lines.iter().map(|line| line[column].chars().count());
        widths.max().unwrap_or(0).max(3)
    };
    let widths: Vec<usize> = (0..lines[0].len()).map(width).collect();
    let mut text = String::new();
    for (number, line) in lines.iter().enumerate() {
        for (cell, width) in line.iter().zip(&widths) {
            let _ = write!(text, "| {cell:<width$} ");
        }
        text.push_str("|\n");
        if number == 0 {
            for width in &widths {
                let _ = write!(text, "|{}", "-".repeat(width + 2));
            }
            text.push_str("|\n");
        }
    }
    text
}
