/* MPI program: prints in lines who the ranks are, where they run, whether their sums are right, and how fast
 * messages go between nodes. Needs MPI 3.0 (2012) and nothing else; compiled on the nodes: mpicc -O1 -o world world.c
 *
 *   world where    no MPI_Init: prints host name and MPI library, so it runs on one node without a launcher
 *   world          prints one line per rank and one per pair of nodes
 *
 * A line is the mark, a blank, and a JSON object, written with one write() so that lines of ranks do not mix.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define MARK "gpucluster-mpi "
#define TEXT 256            /* of a name */
#define COUNT 1024          /* elements of the sum */
#define SMALL 8             /* bytes of a message for the latency */
#define LARGE (4 << 20)     /* and for the bandwidth */
#define SMALL_REPEATS 100
#define LARGE_REPEATS 10
#define WARM_UP 5
#define TAG 7

extern char **environ;

static const char *levels[] = {"single", "funneled", "serialized", "multiple"};

static const char *level_name(int level)
{
    if (level == MPI_THREAD_SINGLE) return levels[0];
    if (level == MPI_THREAD_FUNNELED) return levels[1];
    if (level == MPI_THREAD_SERIALIZED) return levels[2];
    return level == MPI_THREAD_MULTIPLE ? levels[3] : "unknown";
}

/* Copy text into a JSON string: control characters, quotes and backslashes become blanks; long text is cut. */
static void plain(char *to, size_t room, const char *from)
{
    size_t used = 0;
    for (; from && *from && used + 1 < room; from++)
        to[used++] = (*from < ' ' || *from == '"' || *from == '\\') ? ' ' : *from;
    to[used] = '\0';
}

static void print_line(const char *line)
{
    char whole[4096];
    int length = snprintf(whole, sizeof whole, MARK "%s\n", line);
    if (write(STDOUT_FILENO, whole, (size_t)length) != length) _exit(3);
}

static void library(char *to, size_t room)
{
    char text[MPI_MAX_LIBRARY_VERSION_STRING];
    int length = 0;
    MPI_Get_library_version(text, &length);
    text[strcspn(text, "\n")] = '\0';   /* MPICH adds lines about its build */
    plain(to, room, text);
}

static void host_and_node(char *host, char *node)
{
    char text[TEXT] = "";
    gethostname(text, sizeof text - 1);
    plain(host, TEXT, text);
    plain(node, TEXT, getenv("SLURMD_NODENAME"));
}

/* The CPUs that this rank may use, as the kernel lists them; "" if unknown. */
static void allowed_cpus(char *to, size_t room)
{
    static const char key[] = "Cpus_allowed_list:";
    char line[4096];
    FILE *status = fopen("/proc/self/status", "r");
    to[0] = '\0';
    while (status && fgets(line, sizeof line, status)) {
        if (strncmp(line, key, sizeof key - 1)) continue;
        line[strcspn(line, "\n")] = '\0';
        const char *list = line + sizeof key - 1;
        plain(to, room, list + strspn(list, " \t"));
    }
    if (status) fclose(status);
}

/* The variables that select or limit the transports of an MPI, with blanks between; "" if there are none. */
static void transport_variables(char *to, size_t room)
{
    static const char *const prefixes[] = {"UCX_", "FI_", "PSM2_", "PSM3_", "MPIR_CVAR_", "OMPI_MCA_btl", "OMPI_MCA_mtl",
                                           "OMPI_MCA_pml", "OMPI_MCA_coll"};
    size_t used = 0;
    to[0] = '\0';
    for (char **entry = environ; *entry; entry++)
        for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++)
            if (!strncmp(*entry, prefixes[i], strlen(prefixes[i])) && used + 2 < room) {
                if (used) to[used++] = ' ';
                plain(to + used, room - used, *entry);
                used += strlen(to + used);
            }
}

static int where(void)
{
    char host[TEXT], node[TEXT], version[TEXT], line[1024];
    host_and_node(host, node);
    library(version, sizeof version);
    snprintf(line, sizeof line, "{\"kind\": \"where\", \"host\": \"%s\", \"node\": \"%s\", \"library\": \"%s\"}",
             host, node, version);
    print_line(line);
    return 0;
}

/* Wait for all without spinning: idle ranks must not use the CPUs of those that measure. */
static void gather_quietly(void)
{
    struct timespec pause = {0, 1000000};
    MPI_Request request;
    int done = 0;
    MPI_Ibarrier(MPI_COMM_WORLD, &request);
    for (MPI_Test(&request, &done, MPI_STATUS_IGNORE); !done; MPI_Test(&request, &done, MPI_STATUS_IGNORE))
        nanosleep(&pause, NULL);
}

/* Every rank r adds (r + 1) * (i + 1) to element i: size * (size + 1) / 2 * (i + 1) is the sum. Returns wrong elements. */
static int wrong_sums(int rank, int size)
{
    static long long mine[COUNT], sum[COUNT];
    int wrong = 0;
    for (long long i = 0; i < COUNT; i++) mine[i] = (rank + 1) * (i + 1);
    MPI_Allreduce(mine, sum, COUNT, MPI_LONG_LONG, MPI_SUM, MPI_COMM_WORLD);
    for (long long i = 0; i < COUNT; i++) wrong += sum[i] != (long long)size * (size + 1) / 2 * (i + 1);
    return wrong;
}

static int by_size(const void *one, const void *two)
{
    double a = *(const double *)one, b = *(const double *)two;
    return (a > b) - (a < b);
}

/* Send there and back; returns the median of the seconds for one way. Both ends call it. */
static double one_way(int first, int other, char *buffer, int bytes, int repeats)
{
    double took[SMALL_REPEATS];
    for (int turn = -WARM_UP; turn < repeats; turn++) {
        double begin = MPI_Wtime();
        if (first) {
            MPI_Send(buffer, bytes, MPI_BYTE, other, TAG, MPI_COMM_WORLD);
            MPI_Recv(buffer, bytes, MPI_BYTE, other, TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        } else {
            MPI_Recv(buffer, bytes, MPI_BYTE, other, TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            MPI_Send(buffer, bytes, MPI_BYTE, other, TAG, MPI_COMM_WORLD);
        }
        if (turn >= 0) took[turn] = (MPI_Wtime() - begin) / 2;
    }
    qsort(took, (size_t)repeats, sizeof *took, by_size);
    return took[repeats / 2];
}

static void measure_pair(int rank, int one, int two)
{
    char line[256], *buffer = malloc(LARGE);
    int first = rank == one, other = first ? two : one;
    if (!buffer) MPI_Abort(MPI_COMM_WORLD, 4);
    memset(buffer, 1, LARGE);
    double small = one_way(first, other, buffer, SMALL, SMALL_REPEATS);
    double large = one_way(first, other, buffer, LARGE, LARGE_REPEATS);
    if (first) {
        snprintf(line, sizeof line, "{\"kind\": \"pair\", \"ranks\": [%d, %d], \"latency\": %.9g, \"bandwidth\": %.9g}",
                 one, two, small, LARGE / large);
        print_line(line);
    }
    free(buffer);
}

/* Measure each node's first rank with those of its two neighbours, in rounds of pairs that share no node. */
static void measure_ring(int rank, const int *leaders, int nodes)
{
    int rounds = nodes < 3 ? nodes - 1 : 2 + nodes % 2;
    for (int round = 0; round < rounds; round++) {
        gather_quietly();
        for (int at = 0; at < nodes; at++) {
            int mine = at == nodes - 1 && nodes % 2 ? 2 : at % 2;   /* an odd ring closes in a round of its own */
            int next = (at + 1) % nodes;
            if (mine == round && (rank == leaders[at] || rank == leaders[next]))
                measure_pair(rank, leaders[at], leaders[next]);
        }
    }
    gather_quietly();
}

/* Fill the first rank of each node, by rank; returns the number of nodes. */
static int find_leaders(int size, const char *host, const char *node, int *leaders)
{
    char mine[2 * TEXT] = "", *all = malloc((size_t)size * sizeof mine);
    int nodes = 0;
    if (!all) MPI_Abort(MPI_COMM_WORLD, 4);
    snprintf(mine, sizeof mine, "%s %s", node, host);   /* virtual nodes share a host, some launchers the variable */
    MPI_Allgather(mine, sizeof mine, MPI_CHAR, all, sizeof mine, MPI_CHAR, MPI_COMM_WORLD);
    for (int rank = 0; rank < size; rank++) {
        int known = 0;
        for (int at = 0; at < nodes; at++)
            known |= !strcmp(all + (size_t)leaders[at] * sizeof mine, all + (size_t)rank * sizeof mine);
        if (!known) leaders[nodes++] = rank;
    }
    free(all);
    return nodes;
}

int main(int argc, char **argv)
{
    char host[TEXT], node[TEXT], version[TEXT], cpus[TEXT], variables[2 * TEXT], line[2048];
    int rank, size, level;
    if (argc > 1 && !strcmp(argv[1], "where")) return where();
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    host_and_node(host, node);
    library(version, sizeof version);
    allowed_cpus(cpus, sizeof cpus);
    transport_variables(variables, sizeof variables);
    int wrong = wrong_sums(rank, size);
    snprintf(line, sizeof line,
             "{\"kind\": \"rank\", \"rank\": %d, \"size\": %d, \"host\": \"%s\", \"node\": \"%s\", \"pid\": %d, "
             "\"threads\": \"%s\", \"wrong\": %d, \"of\": %d, \"library\": \"%s\", \"cpus\": \"%s\", \"variables\": \"%s\"}",
             rank, size, host, node, (int)getpid(), level_name(level), wrong, COUNT, version, cpus, variables);
    print_line(line);
    int *leaders = malloc((size_t)size * sizeof *leaders);
    if (!leaders) MPI_Abort(MPI_COMM_WORLD, 4);
    int nodes = find_leaders(size, host, node, leaders);
    if (nodes > 1) measure_ring(rank, leaders, nodes);
    free(leaders);
    MPI_Finalize();
    return 0;
}
