-- name: loop_tick
INSERT INTO loops (loop, at) VALUES (:loop, :at) ON CONFLICT (loop) DO UPDATE SET at = excluded.at;
