//! While slices are read, nobody puts.
use pgas::{GlobalArray, World};

fn main() -> pgas::Result<()> {
    World::run(|world| {
        let mut array = GlobalArray::<u64>::new(world, 10)?;
        let view = array.read()?;
        array.put(9, view[0])?;
        drop(view);
        Ok(())
    })
}
