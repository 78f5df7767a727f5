//! What runs in the containers of the tests: linked statically, it is all there is in their image.

use std::io::{Read, Write};

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    println!("says {}", words.join(" "));
    match words.as_slice() {
        ["serve"] => serve(),
        ["fail", code] => {
            eprintln!("no such model");
            std::process::exit(code.parse().unwrap_or(1));
        }
        ["eat"] => {
            let mut eaten: Vec<Vec<u8>> = Vec::new();
            loop {
                eaten.push(vec![1; 1 << 20]);
            }
        }
        ["print", name] => {
            println!("{name}={}", std::env::var(name).unwrap_or_default());
            serve();
        }
        ["count"] => {
            std::thread::spawn(serve);
            for number in 0.. {
                println!("line {number}");
                std::thread::sleep(std::time::Duration::from_millis(5)); // tidy: waits for nothing, a pace
            }
        }
        _ => {}
    }
}

fn serve() {
    let port: u16 = std::env::var("PORT").ok().and_then(|port| port.parse().ok()).unwrap_or(0);
    let Ok(listener) = std::net::TcpListener::bind(("0.0.0.0", port)) else {
        std::process::exit(98);
    };
    for stream in listener.incoming().flatten() {
        let mut stream = stream;
        let mut head = [0; 1024];
        let _ = stream.read(&mut head);
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok");
    }
}
