-- Frozen: later changes are migrations of their own.

-- Whose attempt the objects of a run are, how many they are and how many bytes they have.
CREATE TABLE object_counts (
    run_id TEXT NOT NULL PRIMARY KEY,
    attempt INTEGER NOT NULL,
    objects INTEGER NOT NULL,
    bytes INTEGER NOT NULL
);
INSERT INTO object_counts (run_id, attempt, objects, bytes)
SELECT o.run_id, r.attempt, COUNT(*), SUM(LENGTH(o.body))
FROM objects o JOIN runs r ON r.id = o.run_id GROUP BY o.run_id, r.attempt;
