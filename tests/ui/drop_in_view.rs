//! An array is not dropped under its view.
use pgas::{GlobalArray, World};

fn main() -> pgas::Result<()> {
    World::run(|world| {
        let mut array = GlobalArray::<u64>::new(world, 10)?;
        let view = array.local()?;
        array.close()?;
        println!("{}", view[0]);
        Ok(())
    })
}
