-- Frozen: later changes are migrations of their own.

-- A deployed function, class or web app. `current` is the version that new calls get.
CREATE TABLE endpoints (
    id TEXT NOT NULL PRIMARY KEY,
    project TEXT NOT NULL,
    name TEXT NOT NULL,
    -- Made by a call from a program and not by a deploy; goes away when nobody calls any more.
    live INTEGER NOT NULL,
    current INTEGER NOT NULL,
    scaling TEXT NOT NULL,
    stopped INTEGER NOT NULL,
    created_at REAL NOT NULL,
    created_by TEXT NOT NULL,
    called_at REAL NOT NULL
);
CREATE UNIQUE INDEX endpoints_name ON endpoints (project, name);

CREATE TABLE endpoint_versions (
    endpoint_id TEXT NOT NULL,
    version INTEGER NOT NULL,
    digest TEXT NOT NULL,
    spec TEXT NOT NULL,
    functions TEXT NOT NULL,
    state TEXT NOT NULL,
    detail TEXT,
    created_at REAL NOT NULL,
    created_by TEXT NOT NULL,
    PRIMARY KEY (endpoint_id, version)
);

-- The service runs of an endpoint. `pool` tells instances of a class with other parameters apart.
CREATE TABLE instances (
    run_id TEXT NOT NULL PRIMARY KEY,
    endpoint_id TEXT NOT NULL,
    version INTEGER NOT NULL,
    pool TEXT NOT NULL,
    ready_at REAL,
    created_at REAL NOT NULL
);
CREATE INDEX instances_endpoint ON instances (endpoint_id, version, pool);

-- The parameters of a class's pool, as they were given first.
CREATE TABLE pools (
    endpoint_id TEXT NOT NULL,
    pool TEXT NOT NULL,
    format TEXT NOT NULL,
    params BLOB NOT NULL,
    created_at REAL NOT NULL,
    PRIMARY KEY (endpoint_id, pool)
);

CREATE TABLE calls (
    id TEXT NOT NULL PRIMARY KEY,
    project TEXT NOT NULL,
    endpoint_id TEXT NOT NULL,
    -- 0 is whichever version serves.
    version INTEGER NOT NULL,
    pool TEXT NOT NULL,
    function TEXT NOT NULL,
    priority INTEGER NOT NULL,
    key TEXT,
    parent_id TEXT,
    depth INTEGER NOT NULL,
    submitted_by TEXT NOT NULL,
    options TEXT NOT NULL,
    args_format TEXT NOT NULL,
    args BLOB,
    args_blob TEXT,
    args_bytes INTEGER NOT NULL,
    created_at REAL NOT NULL,
    ready_at REAL NOT NULL,
    expires_at REAL,
    state TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    lost INTEGER NOT NULL,
    lease_id TEXT,
    run_id TEXT,
    started_at REAL,
    ended_at REAL,
    ran_s REAL NOT NULL,
    result_format TEXT,
    result BLOB,
    result_blob TEXT,
    result_bytes INTEGER NOT NULL,
    error TEXT,
    chunks INTEGER NOT NULL,
    forget_at REAL
);
CREATE INDEX calls_queued ON calls (endpoint_id, version, pool, priority DESC, ready_at, id)
    WHERE state = 'queued';
CREATE INDEX calls_lease ON calls (lease_id) WHERE state = 'assigned';
CREATE UNIQUE INDEX calls_key ON calls (endpoint_id, key) WHERE key IS NOT NULL;
CREATE INDEX calls_created ON calls (created_at, id);
CREATE INDEX calls_expiry ON calls (expires_at) WHERE state = 'queued' AND expires_at IS NOT NULL;
CREATE INDEX calls_forget ON calls (forget_at) WHERE forget_at IS NOT NULL;
CREATE INDEX calls_dead ON calls (created_at, id) WHERE state IN ('failed', 'expired');

-- What a generator has given so far.
CREATE TABLE call_chunks (
    call_id TEXT NOT NULL,
    n INTEGER NOT NULL,
    format TEXT NOT NULL,
    body BLOB,
    blob TEXT,
    PRIMARY KEY (call_id, n)
)/*sqlite  WITHOUT ROWID*/;

-- Named folders that are kept as snapshots. `head` is the newest.
CREATE TABLE volumes (
    project TEXT NOT NULL,
    name TEXT NOT NULL,
    head INTEGER NOT NULL,
    created_at REAL NOT NULL,
    created_by TEXT NOT NULL,
    PRIMARY KEY (project, name)
);

CREATE TABLE volume_versions (
    project TEXT NOT NULL,
    name TEXT NOT NULL,
    version INTEGER NOT NULL,
    parent INTEGER NOT NULL,
    artifact_id TEXT NOT NULL,
    created_at REAL NOT NULL,
    created_by TEXT NOT NULL,
    PRIMARY KEY (project, name, version)
);
