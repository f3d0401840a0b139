//! While this rank has its shard as a slice, nobody gets.
use pgas::{GlobalArray, World};

fn main() -> pgas::Result<()> {
    World::run(|world| {
        let mut array = GlobalArray::<u64>::new(world, 10)?;
        let mut mine = array.local()?;
        mine[0] = array.get(9)?;
        Ok(())
    })
}
