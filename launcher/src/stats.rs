//! What `--stats` shows at the end: a table for each rank, and who has had to do with whom as a picture and as JSON.

use std::fmt::Write;

use ucxrun::wire::RankStats;

/// Most cells in a row of the picture; with more ranks a cell is several.
const CELLS: usize = 256;
/// Width of the matrix.
const SIDE: usize = 720;
/// Room for numbers and words around it.
const EDGE: usize = 60;

/// A line for each rank. Ranks that have not said what they have done are a dash.
pub(crate) fn table(all: &[Option<RankStats>]) -> String {
    let mut out = format!(
        "{:>6} {:>14} {:>12} {:>12} {:>7}",
        "rank", "operations", "bytes", "waiting", "with"
    );
    for (rank, stats) in all.iter().enumerate() {
        let line = match stats {
            None => format!("{rank:>6} {:>14} {:>12} {:>12} {:>7}", "-", "-", "-", "-"),
            Some(stats) => {
                let (operations, bytes) = sums(stats);
                let others = stats.traffic.iter().filter(|one| one.rank as usize != rank);
                format!(
                    "{rank:>6} {operations:>14} {:>12} {:>10.3} s {:>7}",
                    size(bytes),
                    stats.waited.as_secs_f64(),
                    others.count()
                )
            }
        };
        out.push('\n');
        out.push_str(&line);
    }
    out
}

fn sums(stats: &RankStats) -> (u64, u64) {
    let traffic = stats.traffic.iter();
    traffic.fold((0, 0), |(operations, bytes), one| {
        (operations + one.operations, bytes + one.bytes)
    })
}

/// `1.5 KiB`.
fn size(bytes: u64) -> String {
    let mut unit = 0;
    let mut whole = bytes;
    let mut rest = 0;
    while whole >= 1024 && unit < 4 {
        (whole, rest) = (whole / 1024, whole % 1024);
        unit += 1;
    }
    let unit = ["B", "KiB", "MiB", "GiB", "TiB"][unit];
    match unit {
        "B" => format!("{whole} B"),
        unit => format!("{whole}.{} {unit}", rest * 10 / 1024),
    }
}

/// All figures, a line for each rank.
pub(crate) fn json(all: &[Option<RankStats>]) -> String {
    let rank = |(rank, stats): (usize, &Option<RankStats>)| {
        let Some(stats) = stats else {
            return format!("  {{\"rank\": {rank}, \"traffic\": null}}");
        };
        let (operations, bytes) = sums(stats);
        let traffic: Vec<String> = stats
            .traffic
            .iter()
            .map(|one| {
                format!(
                    "{{\"with\": {}, \"operations\": {}, \"bytes\": {}}}",
                    one.rank, one.operations, one.bytes
                )
            })
            .collect();
        format!(
            "  {{\"rank\": {rank}, \"operations\": {operations}, \"bytes\": {bytes}, \"waiting\": {:.6}, \"traffic\": [{}]}}",
            stats.waited.as_secs_f64(),
            traffic.join(", ")
        )
    };
    let ranks: Vec<String> = all.iter().enumerate().map(rank).collect();
    format!("[\n{}\n]\n", ranks.join(",\n"))
}

/// The matrix of bytes: a row for each rank that acts, a column for each whose memory it is.
pub(crate) fn svg(all: &[Option<RankStats>]) -> String {
    let ranks = all.len().max(1);
    let group = ranks.div_ceil(CELLS);
    let cells = ranks.div_ceil(group);
    let mut bytes = vec![0_u64; cells * cells];
    for (rank, stats) in all.iter().enumerate() {
        for one in stats.iter().flat_map(|stats| &stats.traffic) {
            let column = (one.rank as usize / group).min(cells - 1);
            bytes[rank / group * cells + column] += one.bytes;
        }
    }
    let most = bytes.iter().copied().max().unwrap_or(0);
    let all_of_it = SIDE + 2 * EDGE;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {all_of_it} {all_of_it}\" \
         font-family=\"sans-serif\" font-size=\"13\">\n\
         <rect width=\"{all_of_it}\" height=\"{all_of_it}\" fill=\"white\"/>\n\
         <text x=\"{EDGE}\" y=\"24\">bytes moved: a row for each rank that acts, a column for each whose \
         memory it is; darkest: {}</text>\n",
        size(most)
    );
    // Tenths of a unit, so that cells meet exactly.
    let place = |cell: usize| EDGE * 10 + cell * SIDE * 10 / cells;
    let tenths = |length: usize| format!("{}.{}", length / 10, length % 10);
    for row in 0..cells {
        for column in 0..cells {
            let here = bytes[row * cells + column];
            if here == 0 {
                continue;
            }
            let (x, y) = (place(column), place(row));
            // Writing to a string cannot fail.
            let _ = writeln!(
                out,
                "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"{}\"><title>{} to {}: {}</title></rect>",
                tenths(x),
                tenths(y),
                tenths(place(column + 1) - x),
                tenths(place(row + 1) - y),
                shade(here, most),
                named(row, group, ranks),
                named(column, group, ranks),
                size(here)
            );
        }
    }
    for cell in (0..cells).step_by(cells.div_ceil(16)) {
        let middle = (place(cell) + place(cell + 1)) / 2;
        let rank = cell * group;
        let _ = writeln!(
            out,
            "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">{rank}</text>\
             <text x=\"{}\" y=\"{}\" text-anchor=\"end\">{rank}</text>",
            tenths(middle),
            EDGE - 8,
            EDGE - 8,
            tenths(middle + 40),
        );
    }
    let _ = writeln!(
        out,
        "<rect x=\"{EDGE}\" y=\"{EDGE}\" width=\"{SIDE}\" height=\"{SIDE}\" fill=\"none\" stroke=\"black\"/>\n</svg>"
    );
    out
}

fn named(cell: usize, group: usize, ranks: usize) -> String {
    let first = cell * group;
    match (first + group).min(ranks) - 1 {
        last if last > first => format!("ranks {first}-{last}"),
        _ => format!("rank {first}"),
    }
}

/// By the logarithm: a factor of two is one step, down to a thirtieth of the darkest.
fn shade(bytes: u64, most: u64) -> String {
    let below = most.max(1).ilog2() - bytes.max(1).ilog2();
    let light = (below * 8).min(230);
    format!(
        "rgb({light},{},{})",
        40 + light * 215 / 255,
        100 + light * 155 / 255
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use ucxrun::wire::Traffic;

    fn stats(traffic: &[(u32, u64, u64)]) -> Option<RankStats> {
        let one = |&(rank, operations, bytes)| Traffic {
            rank,
            operations,
            bytes,
        };
        Some(RankStats {
            traffic: traffic.iter().map(one).collect(),
            waited: Duration::from_millis(1500),
        })
    }

    #[test]
    fn figures_are_shown() {
        let all = [stats(&[(0, 2, 16), (1, 3, 3000)]), None, stats(&[])];
        let table = table(&all);
        let lines: Vec<Vec<&str>> = table
            .lines()
            .map(|line| line.split_whitespace().collect())
            .collect();
        assert_eq!(lines[1], ["0", "5", "2.9", "KiB", "1.500", "s", "1"]);
        assert_eq!(lines[2], ["1", "-", "-", "-", "-"]);
        assert_eq!(lines[3], ["2", "0", "0", "B", "1.500", "s", "0"]);
        let json = json(&all);
        assert!(json.contains("{\"rank\": 0, \"operations\": 5, \"bytes\": 3016, \"waiting\": 1.500000, \"traffic\": [{\"with\": 0, \"operations\": 2, \"bytes\": 16}, {\"with\": 1,"), "{json}");
        assert!(json.contains("{\"rank\": 1, \"traffic\": null},"), "{json}");
        let svg = svg(&all);
        assert!(
            svg.contains("<title>rank 0 to rank 1: 2.9 KiB</title>"),
            "{svg}"
        );
        assert_eq!(svg.matches("<title>").count(), 2);
        assert!(svg.ends_with("</svg>\n"));
    }

    #[test]
    fn large_jobs_fit_a_picture() {
        let next = |rank: u32| stats(&[((rank + 1) % 1000, 1, 1 << (rank % 40))]);
        let all: Vec<_> = (0..1000).map(next).collect();
        let svg = svg(&all);
        assert!(svg.len() < 200_000 && svg.contains("ranks 0-3 to ranks 0-3"));
        assert!(super::svg(&[]).ends_with("</svg>\n"));
    }
}
