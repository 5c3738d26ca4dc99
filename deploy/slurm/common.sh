# The common part of the scripts for Slurm: sourced, not run. /etc/nram/slurm.conf may change these settings:
#   NRAM_JOB_DONATE   the memory that each node of a job lends to the job's pool (--donate; default auto: its available
#                     memory less a reserve)
#   NRAM_JOB_PORT     the first of the ports; each job takes two of the 24000 from there (default 7100). Jobs whose ids
#                     differ by a multiple of 12000 begin with the same two: on one node, the later job takes the next
#                     two free ports. All nodes of a larger job need the same two. A node where these are taken lends
#                     the job nothing; its log and its tasks' output say so
#   NRAM_JOB_FLAGS    further flags of nram-memserver
#   NRAM_JOB_LEAVE_MS the time in which a node that leaves a job moves its data to the job's other nodes
#                     (--leave-within-ms; default 60000). Nothing moves at the end of a job: the server ends when no
#                     client of the job has a lease, or after 5 s
#   NRAM_JOB_SECRET   a file of root's, the same on all nodes (default /etc/nram/slurm.secret; make it with
#                     umask 077; openssl rand -out FILE 32). Each job's certificates derive from it, so that only the
#                     job's user uses the job's pool, over TLS
#   NRAM_JOB_UNAUTHENTICATED   yes: without that file, every peer that reaches the ports may use the pool. Otherwise a
#                     job without that file has no pool
#   NRAM_JOB_ASKED    yes: only a job with the word nram in its comment has a pool. With nram=SIZE each of its nodes
#                     lends at most SIZE, and no more than it has to spare, instead of NRAM_JOB_DONATE (sbatch
#                     --comment=nram=4G). Blanks, commas and semicolons separate other words
#   NRAM_JOB_METRICS  a directory of root's, shared with Prometheus' host: each server answers Prometheus on a port that
#                     the kernel chooses, and NODE-job-ID.json in that directory names it (for file_sd_configs) until
#                     the job ends
# The nodes of a job must reach each other on these ports.

# Slurm gives its scripts no search path.
export PATH=${PATH:+$PATH:}/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin

NRAM_JOB_DONATE=auto
NRAM_JOB_PORT=7100
NRAM_JOB_FLAGS=
NRAM_JOB_LEAVE_MS=60000
NRAM_JOB_SECRET=/etc/nram/slurm.secret
NRAM_JOB_UNAUTHENTICATED=
NRAM_JOB_ASKED=
NRAM_JOB_METRICS=
[ ! -r "${NRAM_SLURM_CONF:-/etc/nram/slurm.conf}" ] || . "${NRAM_SLURM_CONF:-/etc/nram/slurm.conf}"

: "${SLURM_JOB_ID:?is not set: this is run by Slurm}"
job_directory=${NRAM_RUN_DIR:-/run/nram}/job-$SLURM_JOB_ID
job_port=$((NRAM_JOB_PORT + SLURM_JOB_ID % 12000 * 2))
[ -z "$NRAM_JOB_METRICS" ] ||
  job_metrics=$NRAM_JOB_METRICS/${SLURMD_NODENAME:-$(hostname -s)}-job-$SLURM_JOB_ID.json
