//! A slice ends with its view.
use pgas::{GlobalArray, World};

fn main() -> pgas::Result<()> {
    World::run(|world| {
        let mut array = GlobalArray::<u64>::new(world, 10)?;
        let slice = {
            let view = array.read()?;
            &view[..]
        };
        println!("{slice:?}");
        Ok(())
    })
}
