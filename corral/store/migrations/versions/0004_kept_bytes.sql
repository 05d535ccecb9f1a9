-- Frozen: later changes are migrations of their own.

-- Uploads that are under way or broke off, of projects whose quota limits their bytes.
CREATE TABLE uploads (
    project TEXT NOT NULL,
    name TEXT NOT NULL,
    bytes INTEGER NOT NULL,
    updated_at REAL NOT NULL,
    PRIMARY KEY (project, name)
);
-- What calls of such projects carry in the database: arguments, results, chunks, parameters.
CREATE TABLE payload_bytes (
    project TEXT NOT NULL PRIMARY KEY,
    bytes INTEGER NOT NULL
);
