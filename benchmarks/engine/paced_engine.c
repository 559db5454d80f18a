/* A Triton backend for load measurements: the tensors of `tensorrt_llm`, without a language model.
 *
 * Like an engine with in-flight batching, it sends one id per iteration to every request of the
 * batch; the ids repeat the prompt. Measurements thus cover everything but the model. The engine
 * folder is that of `gpt_model_path`; its rank0.engine is a text file:
 *
 *     FAKE
 *     step_ms=10        time of one iteration of the whole batch; 0 or absent: none
 *     prefill_us=5      what each token of a new prompt adds to its first iteration; absent: nothing
 *     runs=32           requests at once; absent: max_batch_size
 *     load_s=1          time before the load; 0 or absent: none
 *     prefilled=FILE    file that gets a byte for each prompt that the engine processes
 *     WEIGHTS           the rest of the file is read by one thread, as TensorRT-LLM reads an engine
 *
 * Inputs read: input_ids, request_output_len, end_id, streaming, stop. Outputs: output_ids and
 * sequence_length. A request ends after request_output_len ids, before end_id, or, with an empty
 * response, when it is cancelled or stopped (`stop` with its id). The parameters read are
 * max_batch_size, gpt_model_path and cancellation_check_period_ms. One rank and one beam; stop
 * words and sampling are ignored.
 *
 * Each instance has its own requests, and answers a `stop` of an unknown id like any other
 * (handleStopRequest of inflight_batcher_llm/src/model_instance_state.cc, tensorrtllm_backend
 * v0.19.0). A stopped request that waits still enters the batch, and ends after its first iteration
 * (executionLoop of cpp/tensorrt_llm/executor/executorImpl.cpp, near 0.19: new requests are fetched
 * after the cancelled ones are ended, and before the next step).
 *
 * Source of the ABI: tritonbackend.h and tritonserver.h of Triton Inference Server, version 1.x.
 */
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define OPAQUE(name) typedef struct name name
OPAQUE(TRITONSERVER_Error);
OPAQUE(TRITONSERVER_Message);
OPAQUE(TRITONBACKEND_Input);
OPAQUE(TRITONBACKEND_Model);
OPAQUE(TRITONBACKEND_ModelInstance);
OPAQUE(TRITONBACKEND_Output);
OPAQUE(TRITONBACKEND_Request);
OPAQUE(TRITONBACKEND_Response);
OPAQUE(TRITONBACKEND_ResponseFactory);

typedef TRITONSERVER_Error *Status; /* NULL is success */

enum { INT32_TENSOR = 8, INTERNAL_ERROR = 1, INVALID_ARGUMENT = 3, FINAL = 1, RELEASE_ALL = 1 };

Status TRITONSERVER_ErrorNew(int code, const char *message);
void TRITONSERVER_ErrorDelete(TRITONSERVER_Error *);
Status TRITONSERVER_MessageSerializeToJson(TRITONSERVER_Message *, const char **, size_t *);
Status TRITONSERVER_MessageDelete(TRITONSERVER_Message *);
Status TRITONBACKEND_ModelConfig(TRITONBACKEND_Model *, uint32_t version, TRITONSERVER_Message **);
Status TRITONBACKEND_ModelInstanceModel(TRITONBACKEND_ModelInstance *, TRITONBACKEND_Model **);
Status TRITONBACKEND_ModelInstanceState(TRITONBACKEND_ModelInstance *, void **);
Status TRITONBACKEND_ModelInstanceSetState(TRITONBACKEND_ModelInstance *, void *);
Status TRITONBACKEND_RequestId(TRITONBACKEND_Request *, const char **);
Status TRITONBACKEND_RequestInput(TRITONBACKEND_Request *, const char *, TRITONBACKEND_Input **);
Status TRITONBACKEND_RequestRelease(TRITONBACKEND_Request *, uint32_t flags);
Status TRITONBACKEND_InputProperties(TRITONBACKEND_Input *, const char **name, int *type,
                                     const int64_t **shape, uint32_t *dims, uint64_t *bytes,
                                     uint32_t *buffers);
Status TRITONBACKEND_InputBuffer(TRITONBACKEND_Input *, uint32_t index, const void **,
                                 uint64_t *bytes, int *memory_type, int64_t *memory_id);
Status TRITONBACKEND_ResponseFactoryNew(TRITONBACKEND_ResponseFactory **, TRITONBACKEND_Request *);
Status TRITONBACKEND_ResponseFactoryDelete(TRITONBACKEND_ResponseFactory *);
Status TRITONBACKEND_ResponseFactoryIsCancelled(TRITONBACKEND_ResponseFactory *, bool *);
Status TRITONBACKEND_ResponseNewFromFactory(TRITONBACKEND_Response **,
                                            TRITONBACKEND_ResponseFactory *);
Status TRITONBACKEND_ResponseOutput(TRITONBACKEND_Response *, TRITONBACKEND_Output **,
                                    const char *name, int type, const int64_t *shape,
                                    uint32_t dims);
Status TRITONBACKEND_OutputBuffer(TRITONBACKEND_Output *, void **, uint64_t bytes,
                                  int *memory_type, int64_t *memory_id);
Status TRITONBACKEND_ResponseSend(TRITONBACKEND_Response *, uint32_t flags, Status error);

typedef struct Request {
    struct Request *next;
    TRITONBACKEND_Request *handle;
    TRITONBACKEND_ResponseFactory *responses;
    const char *id; /* valid as long as the handle */
    int32_t *prompt, *output;
    int prompt_length, wanted, made, end_id;
    bool streaming, is_stop_order, stopped;
} Request;

typedef struct {
    Request *first, **last;
} Queue;

typedef struct {
    pthread_t thread;
    pthread_mutex_t lock; /* guards `inbox` and `closing`; only the thread uses the rest */
    pthread_cond_t news;
    Queue inbox, waiting;
    bool closing;
    Request *running;
    int running_count, runs, prefilled_file;
    uint64_t step_ns, prefill_ns, added_ns, next_step_ns, check_ns, next_check_ns;
} Engine;

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static bool ok(Status status) {
    if (status) TRITONSERVER_ErrorDelete(status);
    return !status;
}

static void append(Queue *queue, Request *request) {
    if (!queue->first) queue->last = &queue->first;
    request->next = NULL;
    *queue->last = request;
    queue->last = &request->next;
}

static Request *take(Queue *queue) {
    Request *request = queue->first;
    if (request) queue->first = request->next;
    return request;
}

/* ---- responses ---- */

static Status write_tensor(TRITONBACKEND_Response *response, const char *name,
                           const int64_t *shape, uint32_t dims, const int32_t *values, int count) {
    TRITONBACKEND_Output *output;
    void *buffer;
    int memory_type = 0;
    int64_t memory_id = 0;
    size_t bytes = sizeof *values * (size_t)count;
    Status status = TRITONBACKEND_ResponseOutput(response, &output, name, INT32_TENSOR, shape, dims);
    if (!status)
        status = TRITONBACKEND_OutputBuffer(output, &buffer, bytes, &memory_type, &memory_id);
    if (!status && bytes) memcpy(buffer, values, bytes);
    return status;
}

/* output_ids [1, 1, count] and sequence_length [1, 1]; `error`, if any, takes their place. */
static void respond(Request *request, const int32_t *ids, int count, bool final, Status error) {
    const int64_t ids_shape[] = {1, 1, count}, length_shape[] = {1, 1};
    TRITONBACKEND_Response *response;
    if (ok(TRITONBACKEND_ResponseNewFromFactory(&response, request->responses))) {
        if (!error) error = write_tensor(response, "output_ids", ids_shape, 3, ids, count);
        if (!error) error = write_tensor(response, "sequence_length", length_shape, 2, &count, 1);
        ok(TRITONBACKEND_ResponseSend(response, final ? FINAL : 0, error));
    }
    ok(error);
}

static void release(Request *request) {
    ok(TRITONBACKEND_RequestRelease(request->handle, RELEASE_ALL));
    ok(TRITONBACKEND_ResponseFactoryDelete(request->responses));
    free(request->prompt);
    free(request->output);
    free(request);
}

/* ---- the engine's thread ---- */

static void stop_by_id(Engine *engine, const Request *order) {
    for (Request *request = engine->running; request; request = request->next)
        request->stopped |= !strcmp(request->id, order->id);
    for (Request *request = engine->waiting.first; request; request = request->next)
        request->stopped |= !strcmp(request->id, order->id);
}

/* Begin a request: its prompt is processed in the next iteration. */
static void begin(Engine *engine, Request *request) {
    request->next = engine->running;
    engine->running = request;
    engine->running_count++;
    engine->added_ns += engine->prefill_ns * (uint64_t)request->prompt_length;
    if (engine->prefilled_file >= 0 && write(engine->prefilled_file, ".", 1) < 1)
        perror("paced_engine: prefilled");
}

/* Take new requests, wait if idle; return false when the engine is closed. */
static bool admit(Engine *engine) {
    pthread_mutex_lock(&engine->lock);
    while (!engine->closing && !engine->inbox.first && !engine->running && !engine->waiting.first) {
        pthread_cond_wait(&engine->news, &engine->lock);
        engine->next_step_ns = now_ns();
    }
    Queue arrived = engine->inbox;
    engine->inbox.first = NULL;
    bool open = !engine->closing;
    pthread_mutex_unlock(&engine->lock);
    for (Request *request; (request = take(&arrived));) {
        if (request->is_stop_order) {
            stop_by_id(engine, request);
            respond(request, NULL, 0, true, NULL);
            release(request);
        } else {
            append(&engine->waiting, request);
        }
    }
    for (Request *request;
         engine->running_count < engine->runs && (request = take(&engine->waiting));)
        begin(engine, request);
    return open;
}

/* Sleep to the end of the current step. A late step does not shorten the next one. */
static void pace(Engine *engine) {
    if (!engine->step_ns && !engine->prefill_ns) return;
    uint64_t now = now_ns();
    engine->next_step_ns += engine->step_ns;
    if (engine->next_step_ns < now) engine->next_step_ns = now;
    engine->next_step_ns += engine->added_ns;
    engine->added_ns = 0;
    struct timespec until = {.tv_sec = (time_t)(engine->next_step_ns / 1000000000u),
                             .tv_nsec = (long)(engine->next_step_ns % 1000000000u)};
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL);
}

/* Send one token of one request; return true at its end. */
static bool step(Request *request) {
    int32_t id = request->prompt[request->made % request->prompt_length];
    bool ended = id == request->end_id;
    if (!ended) request->output[request->made++] = id;
    bool final = ended || request->made == request->wanted;
    if (request->streaming)
        respond(request, &id, ended ? 0 : 1, final, NULL);
    else if (final)
        respond(request, request->output, request->made, true, NULL);
    return final;
}

static void iterate(Engine *engine) {
    uint64_t now = now_ns();
    bool check = now >= engine->next_check_ns;
    if (check) engine->next_check_ns = now + engine->check_ns;
    for (Request **place = &engine->running, *request; (request = *place);) {
        if (check && !request->stopped)
            ok(TRITONBACKEND_ResponseFactoryIsCancelled(request->responses, &request->stopped));
        if (request->stopped) {
            respond(request, NULL, 0, true, NULL);
        } else if (!step(request)) {
            place = &request->next;
            continue;
        }
        *place = request->next;
        engine->running_count--;
        release(request);
    }
}

static void *run(void *engine) {
    while (admit(engine)) {
        pace(engine);
        iterate(engine);
    }
    return NULL;
}

/* ---- requests ---- */

/* Return a copy of an input, with its size in `*bytes`; NULL if it is missing. */
static void *read_input(TRITONBACKEND_Request *handle, const char *name, uint64_t *bytes) {
    TRITONBACKEND_Input *input;
    uint32_t buffers = 0;
    if (!ok(TRITONBACKEND_RequestInput(handle, name, &input))) return NULL;
    if (!ok(TRITONBACKEND_InputProperties(input, NULL, NULL, NULL, NULL, bytes, &buffers)))
        return NULL;
    char *copy = malloc(*bytes + sizeof(int32_t)), *end = copy;
    for (uint32_t index = 0; index < buffers; index++) {
        const void *part;
        uint64_t size;
        int memory_type = 0;
        int64_t memory_id = 0;
        if (!ok(TRITONBACKEND_InputBuffer(input, index, &part, &size, &memory_type, &memory_id)))
            continue;
        memcpy(end, part, size);
        end += size;
    }
    return copy;
}

static int read_number(TRITONBACKEND_Request *handle, const char *name, size_t size, int absent) {
    uint64_t bytes;
    int32_t value = 0;
    void *copy = read_input(handle, name, &bytes);
    if (!copy) return absent;
    memcpy(&value, copy, size);
    free(copy);
    return value;
}

static const char *read_request(Request *request) {
    TRITONBACKEND_Request *handle = request->handle;
    uint64_t bytes = 0;
    request->is_stop_order = read_number(handle, "stop", sizeof(bool), false);
    if (request->is_stop_order) return NULL;
    request->prompt = read_input(handle, "input_ids", &bytes);
    request->prompt_length = (int)(bytes / sizeof *request->prompt);
    request->wanted = read_number(handle, "request_output_len", sizeof(int32_t), 0);
    request->end_id = read_number(handle, "end_id", sizeof(int32_t), -1);
    request->streaming = read_number(handle, "streaming", sizeof(bool), false);
    if (request->prompt_length < 1) return "input_ids is missing or empty";
    if (request->wanted < 1) return "request_output_len must be at least 1";
    request->output = malloc(sizeof *request->output * (size_t)request->wanted);
    return NULL;
}

/* ---- entry points ---- */

static const char *after(const char *text, const char *mark) {
    const char *found = text ? strstr(text, mark) : NULL;
    return found ? found + strlen(mark) : NULL;
}

static Status load(Engine *engine, const char *folder, int length) {
    static char weights[1 << 23];
    char path[4096], line[4096], problem[4200], prefilled[4096] = "";
    double step_ms = 0, prefill_us = 0, load_s = 0;
    snprintf(path, sizeof path, "%.*s/rank0.engine", length, folder);
    FILE *file = fopen(path, "r");
    bool good = file && fgets(line, sizeof line, file) && !strcmp(line, "FAKE\n");
    while (good && fgets(line, sizeof line, file) && strcmp(line, "WEIGHTS\n"))
        good = sscanf(line, "step_ms=%lf", &step_ms) + sscanf(line, "load_s=%lf", &load_s) +
                   sscanf(line, "prefill_us=%lf", &prefill_us) +
                   sscanf(line, "runs=%d", &engine->runs) +
                   sscanf(line, "prefilled=%4095[^\n]", prefilled) ==
               1;
    if (good) usleep((useconds_t)(load_s * 1e6));
    while (good && read(fileno(file), weights, sizeof weights) > 0);
    if (file) fclose(file);
    engine->step_ns = (uint64_t)(step_ms * 1e6);
    engine->prefill_ns = (uint64_t)(prefill_us * 1e3);
    engine->prefilled_file =
        *prefilled ? open(prefilled, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600) : -1;
    if (good && !(*prefilled && engine->prefilled_file < 0)) return NULL;
    snprintf(problem, sizeof problem, "%s is not an engine file of this backend", path);
    return TRITONSERVER_ErrorNew(INTERNAL_ERROR, problem);
}

/* `config` is the model's configuration in Triton's JSON, without spaces. */
static Status configure(Engine *engine, const char *config) {
    const char *batch = after(config, "\"max_batch_size\":");
    const char *period = after(config, "\"cancellation_check_period_ms\":{\"string_value\":\"");
    const char *folder = after(config, "\"gpt_model_path\":{\"string_value\":\"");
    const char *end = folder ? strchr(folder, '"') : NULL;
    if (!batch || !end) return TRITONSERVER_ErrorNew(INTERNAL_ERROR, "no gpt_model_path");
    engine->runs = atoi(batch);
    engine->check_ns = (period && atoi(period) > 0 ? (uint64_t)atoi(period) : 100) * 1000000;
    return load(engine, folder, (int)(end - folder));
}

Status TRITONBACKEND_ModelInstanceInitialize(TRITONBACKEND_ModelInstance *instance) {
    TRITONBACKEND_Model *model;
    TRITONSERVER_Message *message;
    const char *json;
    size_t length;
    Status status = TRITONBACKEND_ModelInstanceModel(instance, &model);
    if (!status) status = TRITONBACKEND_ModelConfig(model, 1, &message);
    if (status) return status;
    status = TRITONSERVER_MessageSerializeToJson(message, &json, &length);
    if (status) return status;
    char *config = strndup(json, length);
    ok(TRITONSERVER_MessageDelete(message));
    Engine *engine = calloc(1, sizeof *engine);
    status = configure(engine, config);
    free(config);
    if (status) {
        free(engine);
        return status;
    }
    pthread_mutex_init(&engine->lock, NULL);
    pthread_cond_init(&engine->news, NULL);
    pthread_create(&engine->thread, NULL, run, engine);
    return TRITONBACKEND_ModelInstanceSetState(instance, engine);
}

Status TRITONBACKEND_ModelInstanceExecute(TRITONBACKEND_ModelInstance *instance,
                                          TRITONBACKEND_Request **handles, uint32_t count) {
    void *state;
    Status status = TRITONBACKEND_ModelInstanceState(instance, &state);
    if (status) return status;
    Engine *engine = state;
    for (uint32_t index = 0; index < count; index++) {
        Request *request = calloc(1, sizeof *request);
        request->handle = handles[index];
        request->id = "";
        ok(TRITONBACKEND_RequestId(request->handle, &request->id));
        ok(TRITONBACKEND_ResponseFactoryNew(&request->responses, request->handle));
        const char *problem = read_request(request);
        if (problem) {
            respond(request, NULL, 0, true, TRITONSERVER_ErrorNew(INVALID_ARGUMENT, problem));
            release(request);
            continue;
        }
        pthread_mutex_lock(&engine->lock);
        append(&engine->inbox, request);
        pthread_cond_signal(&engine->news);
        pthread_mutex_unlock(&engine->lock);
    }
    return NULL;
}

Status TRITONBACKEND_ModelInstanceFinalize(TRITONBACKEND_ModelInstance *instance) {
    void *state;
    Status status = TRITONBACKEND_ModelInstanceState(instance, &state);
    if (status || !state) return status;
    Engine *engine = state;
    pthread_mutex_lock(&engine->lock);
    engine->closing = true;
    pthread_cond_signal(&engine->news);
    pthread_mutex_unlock(&engine->lock);
    pthread_join(engine->thread, NULL);
    if (engine->prefilled_file >= 0) close(engine->prefilled_file);
    free(engine);
    return NULL;
}
