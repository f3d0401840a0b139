//! Every collective against plain vectors, of lengths on both sides of each change of method.

use super::Random;
use pgas::{Op, Ragged, Team};

/// Elements of 8 bytes: within a meeting's line, its slot, one window, and several.
pub(crate) const LENS: [usize; 7] = [0, 1, 5, 600, 2_000, 33_000, 100_003];

/// What rank `rank` gives at `k`.
fn value(rank: usize, k: usize) -> u64 {
    (rank as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ k as u64
}

fn values(rank: usize, len: usize) -> Vec<u64> {
    (0..len).map(|k| value(rank, k)).collect()
}

/// Two maps x → ax + b, one after the other: associative, and the order matters.
fn after(f: [u64; 2], g: [u64; 2]) -> [u64; 2] {
    [
        g[0].wrapping_mul(f[0]),
        g[0].wrapping_mul(f[1]).wrapping_add(g[1]),
    ]
}

fn map_of(rank: usize, k: usize) -> [u64; 2] {
    [value(rank, k) | 1, k as u64]
}

fn maps(rank: usize, len: usize) -> Vec<[u64; 2]> {
    (0..len).map(|k| map_of(rank, k)).collect()
}

/// All of `team`'s collectives, with `len` elements.
pub(crate) fn all(team: &Team, len: usize) -> pgas::Result<()> {
    let (me, size) = (team.rank(), team.size());
    for root in [0, size - 1, size / 2] {
        let mut given = values(me, len);
        team.broadcast_slice(root, &mut given)?;
        assert_eq!(given, values(root, len));
        // A type not all of whose bytes are values.
        let mut flags: Vec<bool> = (0..len).map(|k| k % (me + 2) == 0).collect();
        team.broadcast_slice(root, &mut flags)?;
        assert!((0..len).all(|k| flags[k] == (k % (root + 2) == 0)));
        let text = "x".repeat(len + root);
        let object = (me == root).then_some(&text);
        assert_eq!(team.broadcast_obj(root, object)?.len(), len + root);
        let sum = team.reduce_slice(root, &values(me, len), Op::Sum)?;
        let right = (me == root).then(|| reduced(size, len));
        assert_eq!(sum, right);
        let mut sum = values(me, len);
        team.reduce_in_place(root, &mut sum, Op::Sum)?;
        assert_eq!(sum, right.unwrap_or_else(|| values(me, len)));
        // A type not all of whose bytes are values, and an operator that does not commute.
        let mut last: Vec<bool> = (0..len).map(|k| k % (me + 2) == 0).collect();
        team.reduce_in_place(root, &mut last, |_, b| b)?;
        let who = if me == root { size - 1 } else { me };
        assert!((0..len).all(|k| last[k] == (k % (who + 2) == 0)));
        gather_and_scatter(team, root, len)?;
        objects(team, root, len)?;
    }
    let gathered = team.all_gather_slice(&values(me, len))?;
    assert!(
        gathered
            .into_iter()
            .eq((0..size).flat_map(|rank| values(rank, len)))
    );
    let mut flags = vec![false; len * size];
    let mine: Vec<bool> = (0..len).map(|k| k % (me + 2) == 0).collect();
    team.all_gather_into(&mine, &mut flags)?;
    assert!((0..len * size).all(|k| flags[k] == (k % len).is_multiple_of(k / len + 2)));
    let mut sums = values(me, len);
    team.all_reduce_slice(&mut sums, Op::Sum)?;
    assert_eq!(sums, reduced(size, len));
    let mine = (len * me).div_ceil(size)..(len * (me + 1)).div_ceil(size);
    let part = team.reduce_scatter(&values(me, len), Op::Sum)?;
    assert_eq!(part, reduced(size, len)[mine]);
    in_rank_order(team, len)?;
    all_to_all(team, len)
}

fn reduced(size: usize, len: usize) -> Vec<u64> {
    let sum = |k| (0..size).fold(0_u64, |sum, rank| sum.wrapping_add(value(rank, k)));
    (0..len).map(sum).collect()
}

fn in_rank_order(team: &Team, len: usize) -> pgas::Result<()> {
    let (me, size) = (team.rank(), team.size());
    let of_first = |ranks: usize| -> Vec<[u64; 2]> {
        let mut all = maps(0, len);
        for rank in 1..ranks {
            let next = maps(rank, len);
            all.iter_mut()
                .zip(next)
                .for_each(|(f, g)| *f = after(*f, g));
        }
        all
    };
    let mut all = maps(me, len);
    team.all_reduce_slice(&mut all, after)?;
    assert_eq!(all, of_first(size));
    let mut before = maps(me, len);
    team.scan_slice(&mut before, after)?;
    assert_eq!(before, of_first(me + 1));
    let mut before = maps(me, len);
    team.exscan_slice(&mut before, after)?;
    assert_eq!(before, of_first(me));
    // Floats: the same bits everywhere.
    let mut sums: Vec<f64> = (0..len).map(|k| 0.1 * (me + k) as f64).collect();
    team.all_reduce_slice(&mut sums, Op::Sum)?;
    let hash = sums
        .iter()
        .fold(0_u64, |hash, sum| hash.rotate_left(5) ^ sum.to_bits());
    assert!(team.all_gather(hash)?.iter().all(|&other| other == hash));
    Ok(())
}

/// Ragged: rank r gives k elements fewer than `len` to rank k, and none to itself now and then.
fn row(from: usize, to: usize, len: usize) -> Vec<u64> {
    let mut random = Random((from * 1000 + to) as u64 + 1);
    values(
        from * 100 + to,
        len.saturating_sub(random.below(len.max(1) + 1)),
    )
}

fn gather_and_scatter(team: &Team, root: usize, len: usize) -> pgas::Result<()> {
    let (me, size) = (team.rank(), team.size());
    let all: Ragged<u64> = (0..size).map(|rank| row(rank, 0, len)).collect();
    let gathered = team.gather(root, &row(me, 0, len))?;
    assert_eq!(gathered, (me == root).then(|| all.clone()));
    assert_eq!(team.all_gather_ragged(&row(me, 0, len))?, all);
    let rows: Ragged<u64> = (0..size).map(|rank| row(root, rank, len)).collect();
    let mine = team.scatter(root, (me == root).then_some(&rows))?;
    assert_eq!(mine, row(root, me, len));
    let texts: Vec<String> = (0..size).map(|rank| "y".repeat(len / (rank + 1))).collect();
    let mine = team.scatter_obj(root, (me == root).then_some(&texts))?;
    assert_eq!(mine, texts[me]);
    let gathered = team.gather_obj(root, &texts[me])?;
    assert_eq!(gathered, (me == root).then(|| texts.clone()));
    assert_eq!(team.all_gather_obj(&texts[me])?, texts);
    Ok(())
}

fn all_to_all(team: &Team, len: usize) -> pgas::Result<()> {
    let (me, size) = (team.rank(), team.size());
    let each = len / size;
    let give: Vec<u64> = (0..size)
        .flat_map(|to| values(me * 100 + to, each))
        .collect();
    let got = team.all_to_all(&give)?;
    let mut into = vec![0; give.len()];
    team.all_to_all_into(&give, &mut into)?;
    assert_eq!(got, into);
    let right = (0..size).flat_map(|from| values(from * 100 + me, each));
    assert!(got.into_iter().eq(right));
    let rows: Ragged<u64> = (0..size).map(|to| row(me, to, len)).collect();
    let got = team.all_to_all_ragged(&rows)?;
    let right: Ragged<u64> = (0..size).map(|from| row(from, me, len)).collect();
    assert_eq!(got, right);
    Ok(())
}

/// Texts of `len` bytes and a word that says whose and for whom they are.
fn text(from: usize, to: usize, len: usize) -> String {
    format!("({from} {to} {})", "z".repeat(len))
}

/// What combines objects and gives one to each rank, with an operator that does not commute.
pub(crate) fn objects(team: &Team, root: usize, len: usize) -> pgas::Result<()> {
    let (me, size) = (team.rank(), team.size());
    let join = |a: String, b: String| a + &b;
    let of = |ranks: std::ops::Range<usize>, to: usize| -> String {
        ranks.map(|rank| text(rank, to, len / (rank + 1))).collect()
    };
    let mine = text(me, root, len / (me + 1));
    let all = of(0..size, root);
    assert_eq!(team.all_reduce_obj(&mine, join)?, all);
    let reduced = team.reduce_obj(root, &mine, join)?;
    assert_eq!(reduced, (me == root).then_some(all));
    assert_eq!(team.scan_obj(&mine, join)?, of(0..me + 1, root));
    let before = (me > 0).then(|| of(0..me, root));
    assert_eq!(team.exscan_obj(&mine, join)?, before);
    let give: Vec<String> = (0..size).map(|to| text(me, to, len / (me + 1))).collect();
    let got = team.all_to_all_obj(&give)?;
    assert_eq!(got.concat(), of(0..size, me));
    assert_eq!(got.len(), size);
    assert_eq!(team.reduce_scatter_obj(&give, join)?, of(0..size, me));
    Ok(())
}
